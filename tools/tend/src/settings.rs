//! How carefully to tend; [`Builder`](crate::Builder) says what each of these means.

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Settings {
    pub(crate) density: f64,
    pub(crate) cpu_share: f64,
    pub(crate) bytes_per_second: u64,
    pub(crate) keep_free: u64,
    pub(crate) most_pressure: f64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            density: 0.9,
            cpu_share: 1.0,
            bytes_per_second: 1 << 30,
            keep_free: 256 << 20,
            most_pressure: 5.0,
        }
    }
}
