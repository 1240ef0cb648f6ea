//! How long to sleep after what took how long.

use std::time::Duration;

use crate::settings::Settings;

/// After a collapse of so many bytes that took `worked`: neither more of a CPU nor more bytes in a second than the
/// settings say.
pub(crate) fn rest_after(settings: &Settings, bytes: u64, worked: Duration) -> Duration {
    let share = settings.cpu_share.clamp(0.001, 1.0);
    let for_cpu = worked.mul_f64(1.0 / share - 1.0);
    let per_byte = 1.0 / settings.bytes_per_second.max(1) as f64;
    let for_bytes = Duration::from_secs_f64(bytes as f64 * per_byte).saturating_sub(worked);
    for_cpu.max(for_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rest_keeps_both_limits() {
        let settings =
            Settings { cpu_share: 0.25, bytes_per_second: 1 << 20, ..Settings::default() };
        let millis = Duration::from_millis;
        assert_eq!(rest_after(&settings, 0, millis(10)), millis(30));
        assert_eq!(rest_after(&settings, 1 << 20, millis(10)), millis(990));
        assert_eq!(rest_after(&settings, 1 << 20, millis(1000)), millis(3000));
        let all = Settings { cpu_share: 1.0, ..settings };
        assert_eq!(rest_after(&all, 0, millis(10)), Duration::ZERO);
    }
}
