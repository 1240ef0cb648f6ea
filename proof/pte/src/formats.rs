//! The table of formats. Every test and every enumeration goes through it.
//!
//! A bit that a row does not name must be equal throughout a run, and a copy keeps it.

use crate::layout::{Flag, Format, Frame, Layout};

/// Does the same for every format.
pub trait Visitor {
    /// Called for each row, in order.
    fn visit<F: Format>(&mut self);
}

macro_rules! formats {
    ($($(#[$doc:meta])* $name:ident($bits:ty) = $layout:expr;)*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
            pub enum $name {}

            impl Format for $name {
                type Bits = $bits;
                const LAYOUT: Layout = $layout;
            }
        )*

        /// Every row.
        pub const FORMATS: &[Layout] = &[$($name::LAYOUT),*];

        /// Shows `visitor` the type of every row.
        pub fn for_each_format(visitor: &mut impl Visitor) {
            $(visitor.visit::<$name>();)*
        }
    };
}

const fn bits<const N: usize>(list: [u32; N]) -> u64 {
    let (mut sum, mut at) = (0, 0);
    while at < N {
        sum |= 1 << list[at];
        at += 1;
    }
    sum
}

formats! {
    /// x86-64: present 0, write 1, user 2, accessed 5, dirty 6, frame 51:12; special 9, uffd-wp 10
    /// and soft-dirty 11 are software's; no-execute 63.
    ///
    /// Left out: `SavedDirty` (58). Where user shadow stacks are on, the kernel moves dirty there when
    /// it protects a page, because the hardware takes a dirty page that may not be written for a
    /// shadow stack.
    X86_64(u64) = Layout {
        name: "x86-64",
        source: "Intel SDM 3A, 4.5 (4-level paging); arch/x86/include/asm/pgtable_types.h",
        page_shift: 12,
        frame: Frame::one_piece(12, 40),
        empty: 0,
        present: bits([0]),
        special: bits([9]),
        base: bits([0, 2, 63]),
        accessed: Flag::bit(5),
        dirty: Flag::bit(6),
        write: Flag::bit(1),
        store: Flag::NONE,
        store_is_dirty: false,
        soft_dirty: Flag::bit(11),
        uffd_wp: Flag::bit(10),
    };

    /// arm64 with pages of 4 or 16 KiB and addresses of 52 bits (LPA2): valid 0, page 1, user 6 (AP\[1\]),
    /// read-only 7 (AP\[2\]), address 51:50 in 9:8, accessed 10 (AF), not global 11, address 49:12 in place,
    /// write 51 (DBM), no-execute 53 and 54; dirty 55, special 56, uffd-wp 58 are software's.
    ///
    /// Dirty is either software's bit or writable without read-only, as DBM lets the hardware make it.
    Arm64(u64) = arm64(
        "arm64",
        12,
        Frame { low_shift: 12, low_bits: 38, high_shift: 8, high_bits: 2 },
    );

    /// arm64 with pages of 64 KiB and addresses of 52 bits (LPA): as [`Arm64`], but address 47:16 in
    /// place and 51:48 in 15:12.
    Arm64Pages64K(u64) = arm64(
        "arm64-64k",
        16,
        Frame { low_shift: 16, low_bits: 32, high_shift: 12, high_bits: 4 },
    );

    /// arm, two levels, the entries that Linux keeps beside the hardware's, which have no room for
    /// accessed and dirty: present 0, accessed 1, memory type 5:2, dirty 6, read-only 7, user 8,
    /// no-execute 9, shared 10, address 31:12.
    Arm(u32) = Layout {
        name: "arm",
        source: "arch/arm/include/asm/pgtable-2level.h; Arm ARM (ARMv7-A), B3.5 for the hardware's",
        page_shift: 12,
        frame: Frame::one_piece(12, 20),
        empty: 0,
        present: bits([0]),
        special: 0,
        base: bits([0, 2, 3, 4, 8, 9, 10]),
        accessed: Flag::bit(1),
        dirty: Flag::bit(6),
        write: Flag::inverted(7),
        store: Flag::NONE,
        store_is_dirty: false,
        soft_dirty: Flag::NONE,
        uffd_wp: Flag::NONE,
    };

    /// riscv Sv39, Sv48 and Sv57: valid 0, read 1, write 2, execute 3, user 4, accessed 6, dirty 7,
    /// special 8 (software's), frame 53:10; with Svrsw60t59b soft-dirty 59 and uffd-wp 60.
    Riscv(u64) = Layout {
        name: "riscv",
        source: "RISC-V privileged specification, Sv39, Svrsw60t59b; \
                 arch/riscv/include/asm/pgtable-bits.h",
        page_shift: 12,
        frame: Frame::one_piece(10, 44),
        empty: 0,
        present: bits([0]),
        special: bits([8]),
        base: bits([0, 1, 4]),
        accessed: Flag::bit(6),
        dirty: Flag::bit(7),
        write: Flag::bit(2),
        store: Flag::NONE,
        store_is_dirty: false,
        soft_dirty: Flag::bit(59),
        uffd_wp: Flag::bit(60),
    };

    /// powerpc, `Book3S` 64-bit with a radix tree and pages of 4 KiB: execute 0, write 1, read 2, dirty 7 (C),
    /// accessed 8 (R), soft-dirty 9 and special 10 (software's), address 52:12, entry-not-pointer 62,
    /// present 63. Bits are counted from the lowest, not as the manual does.
    Powerpc(u64) = powerpc("powerpc", 12);

    /// powerpc with pages of 64 KiB: as [`Powerpc`], address 52:16.
    PowerpcPages64K(u64) = powerpc("powerpc-64k", 16);

    /// s390x: no-execute 8, protection 9, invalid 10, address 63:12; the rest of the lowest eight are
    /// software's: present 0, soft-dirty 1, accessed 2, dirty 3, read 4, write 5, special 6. An old page
    /// is invalid to the hardware, and a clean one protected. An empty entry has invalid set.
    S390x(u64) = Layout {
        name: "s390x",
        source: "z/Architecture Principles of Operation, page-table entries; \
                 arch/s390/include/asm/pgtable.h",
        page_shift: 12,
        frame: Frame::one_piece(12, 52),
        empty: bits([10]),
        present: bits([0]),
        special: bits([6]),
        base: bits([0, 4, 8]),
        accessed: Flag::bit(2).and_inverted(10),
        dirty: Flag::bit(3),
        write: Flag::bit(5),
        store: Flag::inverted(9),
        store_is_dirty: false,
        soft_dirty: Flag::bit(1),
        uffd_wp: Flag::NONE,
    };

    /// sparc64 (sun4v): size 2:0, present 4 (software's), hardware write 6, execute 7, cacheable 9 and 10,
    /// address 55:13, special 57, write 58, read 59, accessed 60, dirty 61 (software's), valid 63. An old
    /// page is not valid to the hardware, and only a dirty one has hardware write.
    Sparc64(u64) = Layout {
        name: "sparc64",
        source: "UltraSPARC Architecture, sun4v TTE; arch/sparc/include/asm/pgtable_64.h",
        page_shift: 13,
        frame: Frame::one_piece(13, 43),
        empty: 0,
        present: bits([4]),
        special: bits([57]),
        base: bits([4, 9, 10, 59]),
        accessed: Flag::bit(60).and_bit(63),
        dirty: Flag::bit(61),
        write: Flag::bit(58),
        store: Flag::bit(6),
        store_is_dirty: false,
        soft_dirty: Flag::NONE,
        uffd_wp: Flag::NONE,
    };

    /// nios2: frame 19:0, then global 20, execute 21, write 22, read 23, cacheable 24; present 25, accessed 26
    /// and dirty 27 are software's, in bits that the hardware ignores.
    Nios2(u32) = Layout {
        name: "nios2",
        source: "Nios II Processor Reference, tlbacc; arch/nios2/include/asm/pgtable-bits.h",
        page_shift: 12,
        frame: Frame::one_piece(0, 20),
        empty: 0,
        present: bits([25]),
        special: 0,
        base: bits([23, 24, 25]),
        accessed: Flag::bit(26),
        dirty: Flag::bit(27),
        write: Flag::bit(22),
        store: Flag::NONE,
        store_is_dirty: false,
        soft_dirty: Flag::NONE,
        uffd_wp: Flag::NONE,
    };

    /// Our own, which no hardware walks: present 0, write 1, dirty 2, accessed 3, soft-dirty 4, uffd-wp 5,
    /// special 6, 11:7 the owner's, frame 63:12. With a page of 4 KiB an entry without its low bits is the
    /// offset in the file; with a larger granule the frame counts granules.
    Soft(u64) = Layout {
        name: "soft",
        source: "here",
        page_shift: 12,
        frame: Frame::one_piece(12, 52),
        empty: 0,
        present: bits([0]),
        special: bits([6]),
        base: bits([0]),
        accessed: Flag::bit(3),
        dirty: Flag::bit(2),
        write: Flag::bit(1),
        store: Flag::NONE,
        store_is_dirty: false,
        soft_dirty: Flag::bit(4),
        uffd_wp: Flag::bit(5),
    };
}

const fn arm64(name: &'static str, page_shift: u32, frame: Frame) -> Layout {
    Layout {
        name,
        source: "Arm ARM (A-profile), D8.3 (VMSAv8-64 descriptors, FEAT_LPA, FEAT_LPA2, FEAT_HAFDBS); \
                 arch/arm64/include/asm/pgtable-hwdef.h, pgtable-prot.h",
        page_shift,
        frame,
        empty: 0,
        present: bits([0]),
        special: bits([56]),
        base: bits([0, 1, 6, 11, 53, 54]),
        accessed: Flag::bit(10),
        dirty: Flag::bit(55),
        write: Flag::bit(51),
        store: Flag::inverted(7),
        store_is_dirty: true,
        soft_dirty: Flag::NONE,
        uffd_wp: Flag::bit(58),
    }
}

const fn powerpc(name: &'static str, page_shift: u32) -> Layout {
    Layout {
        name,
        source: "Power ISA 3.0B, book III, 5.7 (radix tree page table entry); \
                 arch/powerpc/include/asm/book3s/64/pgtable.h",
        page_shift,
        frame: Frame::one_piece(page_shift, 53 - page_shift),
        empty: 0,
        present: bits([63]),
        special: bits([10]),
        base: bits([2, 62, 63]),
        accessed: Flag::bit(8),
        dirty: Flag::bit(7),
        write: Flag::bit(1),
        store: Flag::NONE,
        store_is_dirty: false,
        soft_dirty: Flag::bit(9),
        uffd_wp: Flag::NONE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Bits, Entry};

    /// A page written and used, its entry as the manuals and headers spell it out; then the same
    /// protected from writes, and last as a shared mapping's child has it: clean and not accessed.
    fn spelled_out<F: Format>(frame: u64, [used, protected, child]: [u64; 3]) {
        let entry = Entry::<F>::new(frame).writable().dirty().accessed();
        let bits = |entry: Entry<F>| -> u64 { entry.bits().into() };
        assert_eq!(bits(entry), used, "{entry:?}");
        assert_eq!(bits(entry.write_protected()), protected, "{entry:?}");
        assert_eq!(bits(entry.clean().old()), child, "{entry:?}");
        assert!(!entry.clean().is_dirty() && entry.write_protected().is_dirty());
        assert_eq!(entry.frame(), frame);
    }

    #[test]
    fn entries_are_spelled_as_in_the_manuals() {
        let x86_64 = 0x8001_2345_6789_a000;
        spelled_out::<X86_64>(0x12_3456_789a, [0x67, 0x65, 0x7].map(|low| x86_64 | low));
        spelled_out::<Arm>(0x12345, [0x1234_575f, 0x1234_57df, 0x1234_571d]);
        spelled_out::<Riscv>(0x12345, [0x48d_14d7, 0x48d_14d3, 0x48d_1417]);
        let powerpc = 0xc000_0000_1234_0000;
        spelled_out::<Powerpc>(0x12340, [0x186, 0x184, 0x6].map(|low| powerpc | low));
        spelled_out::<PowerpcPages64K>(0x1234, [0x186, 0x184, 0x6].map(|low| powerpc | low));
        spelled_out::<S390x>(0x12345, [0x1234_513d, 0x1234_531d, 0x1234_5731]);
        spelled_out::<Nios2>(0x12345, [0xfc1_2345, 0xf81_2345, 0x3c1_2345]);
        spelled_out::<Soft>(0x12345, [0x1234_500f, 0x1234_500d, 0x1234_5003]);
        spelled_out::<Sparc64>(
            0x12345,
            [0xbc00_0000_2468_a650, 0xb800_0000_2468_a610, 0x0c00_0000_2468_a610],
        );
    }

    #[test]
    fn arm64_keeps_high_address_bits_low_and_dirty_in_the_absence_of_read_only() {
        // Address 0xf_4000_1234_0000: bits 51:48 in 15:12.
        let frame = 0xf_4000_1234;
        let low = 0x0060_4000_1234_f843;
        spelled_out::<Arm64Pages64K>(
            frame,
            [
                low | 1 << 55 | 1 << 51 | 1 << 10,
                low | 1 << 55 | 1 << 10 | 1 << 7,
                low | 1 << 51 | 1 << 7,
            ],
        );
        // Address 0xc_4000_1234_5000: bits 51:50 in 9:8.
        let entry = Entry::<Arm64>::new(0xc4_0001_2345);
        assert_eq!(entry.bits(), 0x0060_4000_1234_5bc3);
        let by_hardware = Entry::<Arm64>::from_bits(entry.writable().bits() & !(1 << 7));
        assert!(by_hardware.is_dirty() && !entry.writable().is_dirty());
        let protected = by_hardware.write_protected();
        assert_eq!(protected.bits(), entry.bits() | 1 << 55);
        assert!(protected.is_dirty() && !by_hardware.clean().is_dirty());
    }

    struct Check;

    impl Visitor for Check {
        fn visit<F: Format>(&mut self) {
            let layout = F::LAYOUT;
            let frame = layout.frame.encode(u64::MAX);
            let flags = [
                layout.accessed,
                layout.dirty,
                layout.write,
                layout.soft_dirty,
                layout.uffd_wp,
                layout.store,
            ];
            let mut taken = frame | layout.special;
            assert_eq!(frame & layout.special, 0);
            for flag in flags {
                assert_eq!(taken & flag.all(), 0, "{}: a bit with two meanings", layout.name);
                assert!(flag.tells.count_ones() <= 1 && flag.tells & !flag.all() == 0);
                taken |= flag.all();
            }
            assert_eq!(layout.present.count_ones(), 1);
            assert_eq!(layout.base & layout.present, layout.present);
            assert_eq!((layout.base & taken, layout.empty & layout.present), (0, 0));
            let named = taken | layout.base;
            assert_eq!(Into::<u64>::into(F::Bits::truncated(named)), named);
            let bits = layout.frame.low_bits + layout.frame.high_bits;
            assert_eq!(frame.count_ones(), bits, "{}", layout.name);
            assert!(bits + layout.page_shift <= 64 && !layout.source.is_empty());
        }
    }

    #[test]
    fn no_bit_means_two_things() {
        for_each_format(&mut Check);
        assert!(FORMATS.iter().all(|row| !row.name.is_empty()));
    }
}
