//! The program of the README, with memory of a size of your choice: a region, its fork and its snapshot.
//!
//! ```sh
//! cargo run --release -p hugekit --example readme -- [MIB]
//! ```

use std::error::Error;
use std::io::{self, Write};

use hugekit::{Pool, Snapshot};

fn main() -> Result<(), Box<dyn Error>> {
    let mib: usize = std::env::args().nth(1).map_or(Ok(1024), |word| word.parse())?;
    let bytes = mib << 20;
    let mut zeroes = Zeroes(0);

    let pool = Pool::builder(3 * bytes).build()?;
    let mut guest = pool.region(bytes)?;
    let mut clone = guest.fork()?;
    clone[0x1234] = 2;
    let snapshot = Snapshot::of_region(&guest)?;
    guest.fill(1);
    snapshot.write_to(&mut zeroes)?;

    assert_eq!(zeroes.0, bytes, "the snapshot has all bytes of the region");
    assert!(guest.iter().all(|&byte| byte == 1), "the region has its own bytes");
    assert_eq!(clone.iter().position(|&byte| byte != 0), Some(0x1234), "so has its fork");
    println!(
        "{mib} MiB on {}: the snapshot, the region and its fork have their own bytes",
        pool.backing()
    );
    Ok(())
}

/// Counts bytes; an error if one is not zero.
struct Zeroes(usize);

impl Write for Zeroes {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.iter().any(|&byte| byte != 0) {
            return Err(io::Error::other("the snapshot has a byte of later"));
        }
        self.0 += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
