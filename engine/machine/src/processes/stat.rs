//! The line `/proc/PID/stat`.

/// Fields of `/proc/PID/stat`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stat {
    /// The name of the process's first thread: at most 15 bytes of any value except zero.
    pub name: Vec<u8>,
    /// The state as a letter, such as `Z` for a process that has ended.
    pub state: u8,
    /// The number of the process that started it.
    pub parent: i32,
    /// `PF_` flags of the kernel.
    pub flags: u32,
    /// The start time, in clock ticks since the start of the machine. Start time and number
    /// together identify a process.
    pub started: u64,
    /// The number of its pages in memory.
    pub resident: u64,
    /// The program that it runs.
    pub program: Program,
}

/// Facts that distinguish a forked process from a process that has started another program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Program {
    stack: u64,
    code: u64,
}

impl Program {
    /// Returns true if the facts could be read. The kernel shows a stack at 0 to a process that may
    /// not debug this process.
    #[must_use]
    pub fn is_known(self) -> bool {
        self.stack != 0
    }
}

impl Stat {
    /// Parses `PID (NAME) STATE PARENT ...`. The name may contain parentheses, spaces and newlines;
    /// only numbers follow it.
    #[must_use]
    pub fn parse(line: &[u8]) -> Option<Self> {
        let open = line.iter().position(|&byte| byte == b'(')?;
        let close = line.iter().rposition(|&byte| byte == b')')?;
        let name = line.get(open + 1..close)?.to_vec();
        let rest = std::str::from_utf8(&line[close + 1..]).ok()?;
        // By the numbers of the fields in proc(5), of which the state is the third.
        let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
        let field = |number: usize| fields.get(number - 3).copied();
        Some(Self {
            name,
            state: *field(3)?.as_bytes().first()?,
            parent: field(4)?.parse().ok()?,
            flags: field(9)?.parse().ok()?,
            started: field(22)?.parse().ok()?,
            resident: field(24)?.parse().ok()?,
            program: Program { code: field(26)?.parse().ok()?, stack: field(28)?.parse().ok()? },
        })
    }

    /// Returns true if the process has ended and its parent has not waited for it.
    #[must_use]
    pub fn is_zombie(&self) -> bool {
        self.state == b'Z'
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(name: &[u8]) -> Vec<u8> {
        let numbers = (4..=52).map(|field| field.to_string()).collect::<Vec<_>>().join(" ");
        [b"17 (", name, b") S ", numbers.as_bytes(), b"\n"].concat()
    }

    #[test]
    fn line_with_any_name_is_read() {
        for name in [&b"sh"[..], b"a) R 1 (b", b"\xff\xfe", b"two\nlines) Z", b"", b"))))"] {
            let stat = Stat::parse(&line(name)).unwrap();
            let program = Program { code: 26, stack: 28 };
            let (name, state) = (name.to_vec(), b'S');
            assert_eq!(
                stat,
                Stat { name, state, parent: 4, flags: 9, started: 22, resident: 24, program }
            );
        }
        for wrong in [&b""[..], b"17 sh S 1", b"17 (sh) S 1 2", b"17 )sh( S"] {
            assert_eq!(Stat::parse(wrong), None);
        }
    }
}
