//! Where arrays start. Regions of a pool start at multiples of 2 MiB, and equal places of several such arrays compete
//! for the same sets of a cache. Arrays whose starts are some cache lines apart do not.

use std::hint::black_box;
use std::time::Instant;

use crate::measure::LabError;
use crate::measure::part::Part;
use crate::record::Unit;
use hugekit_machine::size::{GIB, KIB, MIB, Size};

use crate::experiments::Bench;
use crate::experiments::bench::left_out;

const SIZES: [usize; 3] = [16 * MIB, 64 * MIB, 256 * MIB];

/// The part of the experiment's time.
const SHARE: f64 = 0.1;

/// The arrays of `a + b*c`: three operands and one for the results.
const ARRAYS: usize = 4;

/// Bytes between one start and the next, beyond the array: other sets of each cache, and of each page.
const APART: usize = 16 * KIB + 17 * 64;

/// Arrays are this far apart at least, which leaves room for the starts.
const SLOT: usize = 2 * MIB;

const METHODS: [(&str, usize); 2] = [("aligned", 0), ("staggered", APART)];

pub(super) fn measure(bench: &mut Bench<'_>) -> Result<Part, LabError> {
    let (rounds, memory) = (bench.rounds(SHARE, 30), bench.arena()?.bytes());
    let (fitting, others): (Vec<_>, Vec<_>) =
        SIZES.into_iter().partition(|size| ARRAYS * (size + SLOT) <= memory.len());
    let cases: Vec<_> =
        fitting.iter().flat_map(|&size| METHODS.map(|(name, apart)| (size, name, apart))).collect();
    let names: Vec<_> =
        cases.iter().map(|(size, name, _)| format!("{name}/sum-{}", Size(*size))).collect();
    rounds.observer.begin("copies starts of arrays");
    let mut part = rounds.measure("copies", Unit::GibPerSecond, &names, |index| {
        let (size, _, apart) = cases[index];
        let mut arrays = arrays(memory, size, apart);
        // Both methods find the memory that the other one has left in the caches.
        sum_of_product(&mut arrays);
        let began = Instant::now();
        sum_of_product(&mut arrays);
        Ok((ARRAYS * size) as f64 / GIB as f64 / began.elapsed().as_secs_f64())
    })?;
    for size in fitting {
        part.compare(("aligned", "staggered"), &format!("sum-{}", Size(size)), None);
    }
    let has = memory.len();
    part.notices.extend(others.iter().map(|size| {
        left_out(&format!("starts of arrays, {}", Size(*size)), ARRAYS * (size + SLOT), has)
    }));
    Ok(part)
}

/// Arrays of `size` bytes. Each starts `apart` bytes later in its slot than the one before.
fn arrays(memory: &mut [u8], size: usize, apart: usize) -> [&mut [u8]; ARRAYS] {
    let mut slots = memory.chunks_exact_mut(size + SLOT);
    std::array::from_fn(|at| {
        let slot = slots.next().expect("the caller has room for all arrays");
        &mut slot[at * apart..][..size]
    })
}

/// Reads and writes memory as numpy does for `a + b*c`: the product goes to the results, and then the sum.
#[inline(never)]
fn sum_of_product([a, b, c, results]: &mut [&mut [u8]; ARRAYS]) {
    let (results, _) = results.as_chunks_mut::<8>();
    for (result, (b, c)) in results.iter_mut().zip(words(b).zip(words(c))) {
        *result = (b ^ c).to_ne_bytes();
    }
    for (result, a) in results.iter_mut().zip(words(a)) {
        *result = a.wrapping_add(u64::from_ne_bytes(*result)).to_ne_bytes();
    }
    black_box(results);
}

fn words(bytes: &[u8]) -> impl Iterator<Item = u64> {
    bytes.as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrays_are_apart_and_hold_the_sum() {
        let size = 64;
        let mut memory = vec![0_u8; ARRAYS * (size + SLOT)];
        for (_, apart) in METHODS {
            let mut arrays = arrays(&mut memory, size, apart);
            let starts = arrays.each_ref().map(|array| array.as_ptr().addr());
            assert!(starts.windows(2).all(|pair| pair[1] - pair[0] == size + SLOT + apart));
            for (array, value) in arrays.iter_mut().zip([1, 6, 3, 9]) {
                array.fill(value);
            }
            sum_of_product(&mut arrays);
            assert!(arrays[3].iter().all(|&byte| byte == 1 + (6 ^ 3)));
        }
    }
}
