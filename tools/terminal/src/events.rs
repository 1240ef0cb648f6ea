//! Warnings of the library. The library never prints: it reports limits that it works around, such
//! as an unavailable backing, as events.

use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::writer::BoxMakeWriter;

/// Prints warnings to `writer` from now on.
///
/// # Panics
/// If this process prints warnings already.
pub fn print_to(writer: BoxMakeWriter) {
    tracing_subscriber::fmt()
        .with_writer(writer)
        .with_max_level(LevelFilter::WARN)
        .with_ansi(false)
        .with_target(false)
        .without_time()
        .init();
}

/// Prints warnings to standard error from now on.
///
/// # Panics
/// If this process prints warnings already.
pub fn print() {
    print_to(BoxMakeWriter::new(std::io::stderr));
}
