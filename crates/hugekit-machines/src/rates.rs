//! What routines were measured at on machines that the lab has run on: GiB/s of one thread, medians of `hugekit lab`; and
//! of three, what was published.
//!
//! Kept so that a change of the built-in choice is judged by every machine known so far, and not by the one at hand.
//! Rows have what was recorded there, libc's first, or a string instruction as libc uses it.

/// A machine, and its rates.
#[derive(Clone, Copy, Debug)]
pub struct Rates {
    /// To call it by.
    pub machine: &'static str,
    /// As CPUID says: `GenuineIntel`, `AuthenticAMD`.
    pub vendor: &'static str,
    /// Display family.
    pub family: u32,
    /// Display model.
    pub model: u32,
    /// Second level, in bytes.
    pub l2: usize,
    /// Last level as it is reported, in bytes.
    pub llc: usize,
    /// CPUs of the virtual machine that it was; as many as can be, of one that was none.
    pub guest_cpus: usize,
    /// By operation, state and length.
    pub rows: &'static [Row],
}

/// What was measured of one length.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// Which operation, on memory in which state.
    pub of: Of,
    /// Bytes of the operation.
    pub len: usize,
    /// Routines by name, and GiB/s.
    pub rates: &'static [(&'static str, f64)],
}

/// Operations that are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Of {
    /// A clear of the same bytes over and over.
    ClearWarm,
    /// A clear of bytes that are not in the cache.
    ClearCold,
    /// A copy of the same bytes over and over.
    CopyWarm,
    /// A copy of bytes that are not in the cache.
    CopyCold,
}

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;
const GIB: usize = 1 << 30;

const fn row(of: Of, len: usize, rates: &'static [(&'static str, f64)]) -> Row {
    Row { of, len, rates }
}

/// All machines.
pub const RATES: [Rates; 8] =
    [MILAN, GENOA, TURIN, EMERALD_RAPIDS, MODEL_167, BROADWELL, ROME, SKYLAKE];

/// No guest: nothing of the last level is a neighbour's.
const NO_GUEST: usize = usize::MAX;

/// Published in 2020, of one string instruction and `movnti` only.
const BROADWELL: Rates = Rates {
    machine: "Intel Broadwell-X E5-2630 v4, as published",
    vendor: "GenuineIntel",
    family: 6,
    model: 0x4f,
    l2: 256 * KIB,
    llc: 25 * MIB,
    guest_cpus: NO_GUEST,
    rows: &[
        row(Of::ClearWarm, 16 * MIB, &[("rep_stosb", 17.35), ("movnti", 11.83)]),
        row(Of::ClearWarm, 128 * MIB, &[("rep_stosb", 5.31), ("movnti", 11.72)]),
        row(Of::ClearWarm, GIB, &[("rep_stosb", 5.42), ("movnti", 11.78)]),
        row(Of::ClearWarm, 4 * GIB, &[("rep_stosb", 5.41), ("movnti", 11.76)]),
    ],
};

/// As Broadwell's.
const ROME: Rates = Rates {
    machine: "AMD Rome EPYC 7742, as published",
    vendor: "AuthenticAMD",
    family: 0x17,
    model: 0x31,
    l2: 512 * KIB,
    llc: 16 * MIB,
    guest_cpus: NO_GUEST,
    rows: &[
        row(Of::ClearWarm, 16 * MIB, &[("rep_stosq", 15.39), ("movnti", 14.56)]),
        row(Of::ClearWarm, 128 * MIB, &[("rep_stosq", 11.04), ("movnti", 14.49)]),
        row(Of::ClearWarm, GIB, &[("rep_stosq", 11.86), ("movnti", 16.54)]),
        row(Of::ClearWarm, 4 * GIB, &[("rep_stosq", 11.89), ("movnti", 16.49)]),
    ],
};

/// As Broadwell's.
const SKYLAKE: Rates = Rates {
    machine: "Intel Skylake-X 8270CL, as published",
    vendor: "GenuineIntel",
    family: 6,
    model: 0x55,
    l2: MIB,
    llc: 35 * MIB + 768 * KIB,
    guest_cpus: NO_GUEST,
    rows: &[
        row(Of::ClearWarm, 16 * MIB, &[("rep_stosb", 20.38), ("movnti", 6.25)]),
        row(Of::ClearWarm, 128 * MIB, &[("rep_stosb", 6.52), ("movnti", 6.31)]),
        row(Of::ClearWarm, GIB, &[("rep_stosb", 6.48), ("movnti", 6.24)]),
        row(Of::ClearWarm, 4 * GIB, &[("rep_stosb", 6.51), ("movnti", 6.27)]),
    ],
};

/// Decisions 2 and 4.
const MILAN: Rates = Rates {
    machine: "AMD Milan, 2 CPUs",
    vendor: "AuthenticAMD",
    family: 0x19,
    model: 1,
    l2: 512 * KIB,
    llc: 32 * MIB,
    guest_cpus: 2,
    rows: &[
        row(
            Of::ClearWarm,
            4 * KIB,
            &[("memset", 61.0), ("avx2_cached", 91.0), ("avx2_streaming", 16.0), ("clzero", 16.0)],
        ),
        row(
            Of::ClearWarm,
            64 * KIB,
            &[("memset", 85.0), ("avx2_cached", 92.0), ("avx2_streaming", 36.0), ("clzero", 37.0)],
        ),
        row(
            Of::ClearWarm,
            MIB,
            &[("memset", 58.0), ("avx2_cached", 60.0), ("avx2_streaming", 43.0), ("clzero", 44.0)],
        ),
        row(
            Of::ClearWarm,
            2 * MIB,
            &[("memset", 60.0), ("avx2_cached", 63.0), ("avx2_streaming", 46.0), ("clzero", 45.0)],
        ),
        row(
            Of::ClearWarm,
            16 * MIB,
            &[("memset", 22.0), ("avx2_cached", 22.0), ("avx2_streaming", 44.0), ("clzero", 46.0)],
        ),
        row(
            Of::ClearWarm,
            128 * MIB,
            &[("memset", 33.0), ("avx2_cached", 14.0), ("avx2_streaming", 44.0), ("clzero", 46.0)],
        ),
        row(
            Of::ClearWarm,
            GIB,
            &[("memset", 43.0), ("avx2_cached", 14.0), ("avx2_streaming", 44.0), ("clzero", 46.0)],
        ),
        row(
            Of::CopyWarm,
            4 * KIB,
            &[
                ("memcpy", 24.0),
                ("avx2_cached", 26.0),
                ("avx2_streaming", 12.0),
                ("avx2_interleaved", 12.0),
            ],
        ),
        row(
            Of::CopyWarm,
            64 * KIB,
            &[
                ("memcpy", 27.0),
                ("avx2_cached", 34.0),
                ("avx2_streaming", 19.0),
                ("avx2_interleaved", 4.0),
            ],
        ),
        row(
            Of::CopyWarm,
            MIB,
            &[
                ("memcpy", 26.0),
                ("avx2_cached", 28.0),
                ("avx2_streaming", 18.0),
                ("avx2_interleaved", 4.0),
            ],
        ),
        row(
            Of::CopyWarm,
            2 * MIB,
            &[
                ("memcpy", 27.0),
                ("avx2_cached", 28.0),
                ("avx2_streaming", 18.0),
                ("avx2_interleaved", 4.0),
            ],
        ),
        row(
            Of::CopyWarm,
            16 * MIB,
            &[
                ("memcpy", 8.0),
                ("avx2_cached", 9.0),
                ("avx2_streaming", 13.0),
                ("avx2_interleaved", 3.0),
            ],
        ),
        row(
            Of::CopyCold,
            2 * MIB,
            &[
                ("memcpy", 8.0),
                ("avx2_cached", 8.0),
                ("avx2_streaming", 13.0),
                ("avx2_interleaved", 4.0),
            ],
        ),
        row(
            Of::CopyCold,
            128 * MIB,
            &[
                ("memcpy", 6.0),
                ("avx2_cached", 7.0),
                ("avx2_streaming", 10.0),
                ("avx2_interleaved", 3.0),
            ],
        ),
        row(
            Of::CopyCold,
            GIB,
            &[
                ("memcpy", 11.0),
                ("avx2_cached", 7.0),
                ("avx2_streaming", 10.0),
                ("avx2_interleaved", 3.0),
            ],
        ),
    ],
};

/// Without AVX-512, which its host hid.
const GENOA: Rates = Rates {
    machine: "AMD Genoa, 2 CPUs",
    vendor: "AuthenticAMD",
    family: 0x19,
    model: 0x11,
    l2: MIB,
    llc: 32 * MIB,
    guest_cpus: 2,
    rows: &[
        row(Of::ClearWarm, 4 * KIB, &[("memset", 53.0), ("avx2_cached", 67.0)]),
        row(
            Of::ClearWarm,
            16 * MIB,
            &[("memset", 41.0), ("clzero", 45.0), ("avx2_streaming", 41.0)],
        ),
        row(Of::CopyWarm, 16 * MIB, &[("memcpy", 7.1), ("avx2_streaming", 17.9)]),
    ],
};

/// The quietest of six runs of `lab stores copies`; neighbours halved what the others saw of memory.
const TURIN: Rates = Rates {
    machine: "AMD Turin, 2 CPUs",
    vendor: "AuthenticAMD",
    family: 0x1a,
    model: 2,
    l2: MIB,
    llc: 32 * MIB,
    guest_cpus: 2,
    rows: &[
        row(
            Of::ClearWarm,
            4 * KIB,
            &[
                ("memset", 121.1),
                ("rep_stosb", 121.3),
                ("avx2_cached", 212.8),
                ("avx2_streaming", 22.9),
                ("avx512_streaming", 23.0),
                ("clzero", 23.6),
            ],
        ),
        row(
            Of::ClearWarm,
            64 * KIB,
            &[
                ("memset", 141.1),
                ("rep_stosb", 140.8),
                ("avx2_cached", 164.0),
                ("avx2_streaming", 69.1),
                ("avx512_streaming", 69.8),
                ("clzero", 68.7),
            ],
        ),
        row(
            Of::ClearWarm,
            MIB,
            &[
                ("memset", 140.5),
                ("rep_stosb", 140.2),
                ("avx2_cached", 125.8),
                ("avx2_streaming", 83.1),
                ("avx512_streaming", 83.3),
                ("clzero", 83.3),
            ],
        ),
        row(
            Of::ClearWarm,
            2 * MIB,
            &[
                ("memset", 111.5),
                ("rep_stosb", 111.7),
                ("avx2_cached", 93.7),
                ("avx2_streaming", 83.7),
                ("avx512_streaming", 83.9),
                ("clzero", 83.6),
            ],
        ),
        row(
            Of::ClearWarm,
            16 * MIB,
            &[
                ("memset", 108.9),
                ("rep_stosb", 108.9),
                ("avx2_cached", 60.2),
                ("avx2_streaming", 86.2),
                ("avx512_streaming", 86.4),
                ("clzero", 85.8),
            ],
        ),
        row(
            Of::ClearWarm,
            128 * MIB,
            &[
                ("memset", 82.3),
                ("rep_stosb", 84.1),
                ("avx2_cached", 30.8),
                ("avx2_streaming", 83.7),
                ("avx512_streaming", 83.4),
                ("clzero", 84.1),
            ],
        ),
        row(
            Of::ClearWarm,
            GIB,
            &[
                ("memset", 82.6),
                ("rep_stosb", 83.8),
                ("avx2_cached", 29.5),
                ("avx2_streaming", 83.2),
                ("avx512_streaming", 83.1),
                ("clzero", 82.8),
            ],
        ),
        row(
            Of::ClearWarm,
            4 * GIB,
            &[
                ("memset", 80.8),
                ("rep_stosb", 80.9),
                ("avx2_cached", 30.7),
                ("avx2_streaming", 81.6),
                ("avx512_streaming", 80.7),
                ("clzero", 79.7),
            ],
        ),
        row(
            Of::CopyWarm,
            4 * KIB,
            &[
                ("memcpy", 118.4),
                ("rep_movsb", 116.4),
                ("avx2_cached", 143.9),
                ("avx2_streaming", 15.4),
                ("avx2_interleaved", 15.8),
                ("avx512_streaming", 15.4),
            ],
        ),
        row(
            Of::CopyWarm,
            64 * KIB,
            &[
                ("memcpy", 106.2),
                ("rep_movsb", 105.4),
                ("avx2_cached", 85.6),
                ("avx2_streaming", 27.2),
                ("avx2_interleaved", 26.5),
                ("avx512_streaming", 28.1),
            ],
        ),
        row(
            Of::CopyWarm,
            MIB,
            &[
                ("memcpy", 50.6),
                ("rep_movsb", 57.6),
                ("avx2_cached", 49.3),
                ("avx2_streaming", 31.2),
                ("avx2_interleaved", 28.9),
                ("avx512_streaming", 31.6),
            ],
        ),
        row(
            Of::CopyWarm,
            2 * MIB,
            &[
                ("memcpy", 45.6),
                ("rep_movsb", 54.4),
                ("avx2_cached", 44.7),
                ("avx2_streaming", 33.4),
                ("avx2_interleaved", 32.7),
                ("avx512_streaming", 34.0),
            ],
        ),
        row(
            Of::CopyWarm,
            16 * MIB,
            &[
                ("memcpy", 20.3),
                ("rep_movsb", 25.4),
                ("avx2_cached", 21.6),
                ("avx2_streaming", 29.3),
                ("avx2_interleaved", 23.0),
                ("avx512_streaming", 30.1),
            ],
        ),
        row(
            Of::CopyCold,
            4 * KIB,
            &[
                ("memcpy", 8.6),
                ("rep_movsb", 8.8),
                ("avx2_cached", 8.3),
                ("avx2_streaming", 11.6),
                ("avx2_interleaved", 11.5),
                ("avx512_streaming", 11.7),
            ],
        ),
        row(
            Of::CopyCold,
            64 * KIB,
            &[
                ("memcpy", 8.9),
                ("rep_movsb", 8.8),
                ("avx2_cached", 8.0),
                ("avx2_streaming", 13.7),
                ("avx2_interleaved", 12.9),
                ("avx512_streaming", 13.9),
            ],
        ),
        row(
            Of::CopyCold,
            MIB,
            &[
                ("memcpy", 7.9),
                ("rep_movsb", 9.3),
                ("avx2_cached", 8.1),
                ("avx2_streaming", 13.7),
                ("avx2_interleaved", 13.2),
                ("avx512_streaming", 14.1),
            ],
        ),
        row(
            Of::CopyCold,
            2 * MIB,
            &[
                ("memcpy", 7.8),
                ("rep_movsb", 9.2),
                ("avx2_cached", 8.0),
                ("avx2_streaming", 13.5),
                ("avx2_interleaved", 13.2),
                ("avx512_streaming", 14.1),
            ],
        ),
        row(
            Of::CopyCold,
            16 * MIB,
            &[
                ("memcpy", 7.6),
                ("rep_movsb", 8.8),
                ("avx2_cached", 7.7),
                ("avx2_streaming", 13.7),
                ("avx2_interleaved", 13.0),
                ("avx512_streaming", 13.9),
            ],
        ),
        row(
            Of::CopyCold,
            128 * MIB,
            &[
                ("memcpy", 15.0),
                ("rep_movsb", 22.8),
                ("avx2_cached", 15.7),
                ("avx2_streaming", 21.9),
                ("avx2_interleaved", 16.8),
                ("avx512_streaming", 21.9),
            ],
        ),
        row(
            Of::CopyCold,
            GIB,
            &[
                ("memcpy", 17.2),
                ("rep_movsb", 20.8),
                ("avx2_cached", 12.6),
                ("avx2_streaming", 17.5),
                ("avx2_interleaved", 16.2),
                ("avx512_streaming", 21.3),
            ],
        ),
    ],
};

/// `machines.md`, and the ratios of the run that found the built-in choice wanting there.
const EMERALD_RAPIDS: Rates = Rates {
    machine: "Intel model 207, 2 CPUs, 300 MiB of last level",
    vendor: "GenuineIntel",
    family: 6,
    model: 0xcf,
    l2: 2 * MIB,
    llc: 300 * MIB,
    guest_cpus: 2,
    rows: &[
        row(Of::ClearCold, 2 * MIB, &[("memset", 11.0), ("avx2_streaming", 18.3)]),
        row(Of::ClearWarm, 128 * MIB, &[("memset", 11.6), ("avx2_streaming", 18.5)]),
        row(Of::ClearWarm, GIB, &[("memset", 11.0), ("avx2_streaming", 18.5)]),
        row(
            Of::CopyCold,
            2 * MIB,
            &[("memcpy", 7.7), ("avx2_streaming", 9.4), ("avx2_interleaved", 11.9)],
        ),
        row(
            Of::CopyCold,
            GIB,
            &[("memcpy", 10.1), ("avx2_streaming", 9.4), ("avx2_interleaved", 11.9)],
        ),
    ],
};

/// A quiet run of `lab stores copies`; the host hides which CPU it is. A cached clear of 16 MiB is at 11 or at 27, as
/// the last level has room or not.
const MODEL_167: Rates = Rates {
    machine: "Intel model 167, 2 CPUs, 480 MiB of last level",
    vendor: "GenuineIntel",
    family: 6,
    model: 0xa7,
    l2: 2 * MIB,
    llc: 480 * MIB,
    guest_cpus: 2,
    rows: &[
        row(
            Of::ClearWarm,
            4 * KIB,
            &[
                ("memset", 203.9),
                ("avx2_cached", 162.5),
                ("avx2_streaming", 10.9),
                ("avx512_streaming", 10.8),
                ("movdir64b", 10.9),
            ],
        ),
        row(
            Of::ClearWarm,
            64 * KIB,
            &[
                ("memset", 59.9),
                ("avx2_cached", 59.9),
                ("avx2_streaming", 22.1),
                ("avx512_streaming", 22.2),
                ("movdir64b", 22.6),
            ],
        ),
        row(
            Of::ClearWarm,
            MIB,
            &[
                ("memset", 60.4),
                ("avx2_cached", 60.0),
                ("avx2_streaming", 23.8),
                ("avx512_streaming", 23.8),
                ("movdir64b", 23.7),
            ],
        ),
        row(
            Of::ClearWarm,
            2 * MIB,
            &[
                ("memset", 48.1),
                ("avx2_cached", 45.4),
                ("avx2_streaming", 23.9),
                ("avx512_streaming", 23.9),
                ("movdir64b", 23.8),
            ],
        ),
        row(
            Of::ClearWarm,
            16 * MIB,
            &[
                ("memset", 11.5),
                ("avx2_cached", 27.2),
                ("avx2_streaming", 24.0),
                ("avx512_streaming", 24.1),
                ("movdir64b", 24.3),
            ],
        ),
        row(
            Of::ClearWarm,
            128 * MIB,
            &[
                ("memset", 10.0),
                ("avx2_cached", 8.5),
                ("avx2_streaming", 23.8),
                ("avx512_streaming", 23.9),
                ("movdir64b", 24.1),
            ],
        ),
        row(
            Of::ClearWarm,
            GIB,
            &[
                ("memset", 9.9),
                ("avx2_cached", 8.4),
                ("avx2_streaming", 23.5),
                ("avx512_streaming", 23.7),
                ("movdir64b", 23.6),
            ],
        ),
        row(
            Of::ClearWarm,
            4 * GIB,
            &[
                ("memset", 9.9),
                ("avx2_cached", 8.4),
                ("avx2_streaming", 23.6),
                ("avx512_streaming", 23.7),
                ("movdir64b", 23.4),
            ],
        ),
        row(
            Of::CopyWarm,
            4 * KIB,
            &[
                ("memcpy", 152.2),
                ("avx2_cached", 149.6),
                ("avx2_streaming", 11.5),
                ("avx2_interleaved", 11.3),
                ("avx512_streaming", 11.5),
                ("avx512_interleaved", 11.4),
                ("movdir64b", 11.5),
            ],
        ),
        row(
            Of::CopyWarm,
            64 * KIB,
            &[
                ("memcpy", 51.1),
                ("avx2_cached", 49.3),
                ("avx2_streaming", 20.9),
                ("avx2_interleaved", 21.0),
                ("avx512_streaming", 20.9),
                ("avx512_interleaved", 20.9),
                ("movdir64b", 21.2),
            ],
        ),
        row(
            Of::CopyWarm,
            MIB,
            &[
                ("memcpy", 35.7),
                ("avx2_cached", 32.3),
                ("avx2_streaming", 22.0),
                ("avx2_interleaved", 21.7),
                ("avx512_streaming", 21.9),
                ("avx512_interleaved", 22.0),
                ("movdir64b", 21.9),
            ],
        ),
        row(
            Of::CopyWarm,
            2 * MIB,
            &[
                ("memcpy", 13.8),
                ("avx2_cached", 14.1),
                ("avx2_streaming", 17.4),
                ("avx2_interleaved", 17.6),
                ("avx512_streaming", 17.4),
                ("avx512_interleaved", 17.7),
                ("movdir64b", 17.5),
            ],
        ),
        row(
            Of::CopyWarm,
            16 * MIB,
            &[
                ("memcpy", 9.7),
                ("avx2_cached", 8.0),
                ("avx2_streaming", 13.4),
                ("avx2_interleaved", 13.2),
                ("avx512_streaming", 13.5),
                ("avx512_interleaved", 13.2),
                ("movdir64b", 13.2),
            ],
        ),
        row(
            Of::CopyCold,
            4 * KIB,
            &[
                ("memcpy", 6.7),
                ("avx2_cached", 6.6),
                ("avx2_streaming", 6.8),
                ("avx2_interleaved", 6.8),
                ("avx512_streaming", 7.5),
                ("avx512_interleaved", 7.6),
                ("movdir64b", 8.2),
            ],
        ),
        row(
            Of::CopyCold,
            64 * KIB,
            &[
                ("memcpy", 6.8),
                ("avx2_cached", 6.6),
                ("avx2_streaming", 11.5),
                ("avx2_interleaved", 12.0),
                ("avx512_streaming", 10.4),
                ("avx512_interleaved", 12.2),
                ("movdir64b", 11.4),
            ],
        ),
        row(
            Of::CopyCold,
            MIB,
            &[
                ("memcpy", 6.8),
                ("avx2_cached", 6.7),
                ("avx2_streaming", 11.7),
                ("avx2_interleaved", 12.5),
                ("avx512_streaming", 10.7),
                ("avx512_interleaved", 12.5),
                ("movdir64b", 11.9),
            ],
        ),
        row(
            Of::CopyCold,
            2 * MIB,
            &[
                ("memcpy", 6.7),
                ("avx2_cached", 6.6),
                ("avx2_streaming", 11.3),
                ("avx2_interleaved", 12.3),
                ("avx512_streaming", 10.6),
                ("avx512_interleaved", 12.5),
                ("movdir64b", 11.4),
            ],
        ),
        row(
            Of::CopyCold,
            16 * MIB,
            &[
                ("memcpy", 6.8),
                ("avx2_cached", 6.7),
                ("avx2_streaming", 11.5),
                ("avx2_interleaved", 12.5),
                ("avx512_streaming", 10.9),
                ("avx512_interleaved", 12.4),
                ("movdir64b", 12.0),
            ],
        ),
        row(
            Of::CopyCold,
            128 * MIB,
            &[
                ("memcpy", 6.8),
                ("avx2_cached", 6.5),
                ("avx2_streaming", 11.0),
                ("avx2_interleaved", 12.1),
                ("avx512_streaming", 9.5),
                ("avx512_interleaved", 11.9),
                ("movdir64b", 10.1),
            ],
        ),
        row(
            Of::CopyCold,
            GIB,
            &[
                ("memcpy", 10.7),
                ("avx2_cached", 6.2),
                ("avx2_streaming", 10.8),
                ("avx2_interleaved", 12.0),
                ("avx512_streaming", 10.5),
                ("avx512_interleaved", 12.0),
                ("movdir64b", 11.0),
            ],
        ),
    ],
};
