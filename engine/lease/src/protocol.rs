//! Messages between a broker and its clients. `engine/lease/PROTOCOL.md` describes them.
//!
//! One connection of `SOCK_SEQPACKET` carries one request and one answer, each as one message. A
//! request and the head of an answer are [`MESSAGE`] bytes of little-endian numbers. Unused bytes
//! are zero. The first eight bytes have the same meaning in every version.

mod images;

use std::time::Duration;

use hugekit_machine::size::{Exact, Size};
use hugekit_sys::ErrorKind;
use hugekit_sys::backing::Backing;

pub use images::{
    ImageFacts, ImageName, ImageRange, ImageRow, Load, MOST_IMAGES, MOST_RANGES, MOST_SOURCES,
    NAME, NoImageName, NotLoaded, SAVE_MEMORY,
};

/// The version of this protocol.
pub const VERSION: u16 = 1;

/// The length in bytes of most requests, and of the head of an answer.
pub const MESSAGE: usize = 64;

/// The highest length of a request in bytes.
pub const LONGEST_REQUEST: usize = images::LONGEST_LOAD;

/// The length in bytes of one lease behind the head of a status.
pub const ROW: usize = 32;

/// The highest number of rows of a status.
pub const MOST_ROWS: usize = 1024;

/// The highest length of an answer in bytes.
pub const LONGEST: usize = MESSAGE + STATUS + MOST_ROWS * ROW;

/// The length in bytes of a status between its head and its rows.
const STATUS: usize = 20 * 8;

const MAGIC: u32 = u32::from_le_bytes(*b"hgkl");

/// The reason why a message is not valid in this protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Malformed {
    /// The message does not have the required length.
    #[error("a message of {len} bytes")]
    Length {
        /// The length of the message in bytes.
        len: usize,
    },
    /// The message does not begin with `hgkl`.
    #[error("a message of another protocol")]
    Magic,
    /// The message has another version.
    #[error("a message of version {version}, not {VERSION}")]
    Version {
        /// The version of the message.
        version: u16,
    },
    /// The message has a kind that is unknown in this version, or sets bytes that have no meaning
    /// in its kind.
    #[error("a message of unknown meaning")]
    Meaning,
}

/// A request of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Request {
    /// A request for a unit of memory.
    Lease {
        /// The size of the unit in bytes.
        bytes: u64,
        /// The time that the client waits for a unit, in milliseconds.
        wait_ms: u64,
    },
    /// A request for the status of the broker.
    Status,
    /// A request to load an image from files, whose descriptors come with the message.
    Load(Box<Load>),
    /// A request for a descriptor of an image.
    Get(ImageName),
    /// A request to drop an image.
    Drop(ImageName),
    /// A request for the list of images.
    Images,
    /// A request to return units to the kernel, for a program that starts without a lease. The
    /// broker returns units that no client has, until the program has enough memory.
    GiveBack {
        /// Bytes that the program needs.
        bytes: u64,
        /// Bytes of the reserved huge pages that the program needs; 0 for other memory.
        page_size: u64,
    },
}

/// The owner of the control group that is charged for the memory of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Payer {
    /// The broker.
    Broker,
    /// The client.
    Client,
    /// The group that the administrator named to the broker.
    Group,
}

/// An answer of a broker.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Answer {
    /// A lease. A descriptor comes with the message: a file of memory, populated.
    Leased {
        /// The length of the memory in bytes.
        bytes: u64,
        /// Bytes of a page of the memory.
        page_size: u64,
        /// The owner of the control group that is charged.
        payer: Payer,
        /// Bytes of the memory that were on huge pages when it was populated.
        huge: u64,
    },
    /// The request was refused, with the reason.
    Refused(Refusal),
    /// The status of the broker.
    Status(Box<Status>),
    /// The progress of a load, if the request asked for reports. The answer follows later.
    Loading {
        /// Bytes of the sources that were read.
        done: u64,
        /// Bytes of all sources.
        total: u64,
    },
    /// The image was loaded.
    Loaded(ImageFacts),
    /// An image. A descriptor comes with the message: the image's file, sealed and opened for
    /// reading.
    Image(ImageFacts),
    /// The broker has dropped the image.
    Dropped,
    /// The images that the client may see.
    Images(Vec<ImageRow>),
    /// The broker has returned units to the kernel, or is returning them.
    GivenBack {
        /// Bytes of the returned units.
        bytes: u64,
    },
}

/// The reason why a broker refuses a request. All sizes are in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The broker does not know this kind of request.
    #[error("the broker does not understand the request; it speaks version {newest}")]
    NotUnderstood {
        /// The newest version of the protocol that the broker supports.
        newest: u64,
    },
    /// The broker serves only its own user.
    #[error("the broker runs as user {served} and serves that user only, not user {uid}")]
    NotServed {
        /// The client's user.
        uid: u64,
        /// The broker's user.
        served: u64,
    },
    /// The lease does not have the size of a unit. All leases of this broker have this size.
    #[error("{} were asked for, but the broker's units are of {}", size(asked), size(unit))]
    WrongSize {
        /// The requested size.
        asked: u64,
        /// The size of a unit.
        unit: u64,
    },
    /// With this lease, the user would exceed its quota.
    #[error(
        "{} were asked for, but the user's leases are {} of a quota of {}",
        size(asked),
        size(used),
        size(quota)
    )]
    OverQuota {
        /// The requested size.
        asked: u64,
        /// Bytes of the user's leases, and of ended leases whose memory has not returned yet.
        used: u64,
        /// The user's quota.
        quota: u64,
    },
    /// No unit became ready within the client's time.
    #[error(
        "{}: {} of {} are populated of the next one, and {} served before",
        none_ready(*waited_ms), size(present), size(unit), clients(*before)
    )]
    NoneReady {
        /// The time that the client waited, in milliseconds.
        waited_ms: u64,
        /// Populated bytes of the next unit.
        present: u64,
        /// The size of a unit.
        unit: u64,
        /// Clients that the broker had to serve first.
        before: u64,
    },
    /// The machine has not enough free memory of this kind.
    #[error(
        "a unit needs {} in pages of {}, {} are free, and the broker leaves {} of them to others",
        size(unit),
        size(page_size),
        size(free),
        size(keep_free)
    )]
    NoPages {
        /// The size of a unit.
        unit: u64,
        /// Bytes of a page.
        page_size: u64,
        /// Free memory of this kind that is not promised to a process.
        free: u64,
        /// Bytes that the broker leaves free.
        keep_free: u64,
    },
    /// The user has as many connections to the broker as one user may have, or all users together
    /// have as many as they may have.
    #[error(
        "the broker serves no more than {most} connections, of one user no more than {most_of_user}"
    )]
    Busy {
        /// The highest number of connections of all users.
        most: u64,
        /// The highest number of connections of one user.
        most_of_user: u64,
    },
    /// The kernel refused memory while a unit was populated.
    #[error("a unit could not be populated: {}", failure(*errno, *signal))]
    NotPopulated {
        /// The number of the system error, or 0.
        errno: u64,
        /// The signal that ended the populating process, or 0. The kernel's OOM killer sends 9.
        signal: u64,
    },
    /// The broker is ending.
    #[error("the broker is ending")]
    Ending,
    /// The broker has no units.
    #[error("the broker has no memory to lease: it holds images only")]
    NoUnits,
    /// There is no image of this name that the user may use.
    #[error("the broker has no image of that name for this user")]
    NoImage,
    /// The user already has an image of this name.
    #[error("the broker has an image of that name already")]
    ImageExists,
    /// The broker holds the highest permitted number of images.
    #[error("the broker holds no more than {most} images, of one user no more than {most_of_user}")]
    TooManyImages {
        /// The highest number of images of all users.
        most: u64,
        /// The highest number of images of one user.
        most_of_user: u64,
    },
    /// The machine has not enough memory for an image.
    #[error(
        "the image needs up to {}, {} are available, and the broker leaves {} of them to others",
        size(asked),
        size(free),
        size(keep_free)
    )]
    NoMemory {
        /// Bytes that the client requested.
        asked: u64,
        /// Available memory.
        free: u64,
        /// Bytes that the broker leaves free.
        keep_free: u64,
    },
    /// The image is for all users. Only root and the broker's own user may load or drop such
    /// images.
    #[error(
        "images for all users are loaded and dropped by root and by user {served}, not by user {uid}"
    )]
    NotForAll {
        /// The client's user.
        uid: u64,
        /// The broker's user.
        served: u64,
    },
    /// The broker runs the highest permitted number of loads.
    #[error(
        "the broker loads no more than {most} images at once, for one user no more than {most_of_user}"
    )]
    TooManyLoads {
        /// The highest number of loads of all users.
        most: u64,
        /// The highest number of loads of one user.
        most_of_user: u64,
    },
    /// The image could not be loaded.
    #[error("the image could not be loaded: {0}")]
    NotLoaded(NotLoaded),
}

/// The status of a broker. All sizes are in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Status {
    /// The backing of units.
    pub backing: Backing,
    /// The NUMA node of the units, if the broker was started with a node.
    pub node: Option<u32>,
    /// The size of a unit.
    pub unit: u64,
    /// The number of units that the broker tries to keep ready.
    pub target: u64,
    /// The number of ready units.
    pub ready: u64,
    /// The number of units that are being populated.
    pub filling: u64,
    /// Populated bytes of the units that are being populated.
    pub filled: u64,
    /// The number of leases that have not ended.
    pub leases: u64,
    /// Bytes of ended leases that have not returned to the kernel's free pages. Such memory is
    /// pinned, or another process allocated it at once.
    pub unreturned: u64,
    /// The number of waiting clients.
    pub waiting: u64,
    /// Bytes that the broker leaves free.
    pub keep_free: u64,
    /// Free memory of this kind that is not promised to a process.
    pub free: u64,
    /// The number of leases since the start of the broker.
    pub given: u64,
    /// The number of units that could not be populated since the start of the broker.
    pub failures: u64,
    /// The reason of the last failure.
    pub last_failure: Option<Refusal>,
    /// Bytes of ready units that were on huge pages when they were populated.
    pub huge: u64,
    /// The leases, the newest last. If there are more than [`MOST_ROWS`], the oldest of them.
    pub rows: Vec<LeaseRow>,
}

/// A lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseRow {
    /// The user that has the lease.
    pub uid: u32,
    /// The process that requested the lease. It may have passed the lease on.
    pub pid: u32,
    /// The size of the lease in bytes.
    pub bytes: u64,
    /// The time since the lease was given, in milliseconds.
    pub age_ms: u64,
    /// The owner of the control group that is charged.
    pub payer: Payer,
    /// True if the lease has ended and its memory has not returned.
    pub is_unreturned: bool,
}

impl Status {
    /// Makes the status of a broker that was just started, without rows.
    #[must_use]
    pub fn new(backing: Backing, unit: u64, target: u64) -> Self {
        Self {
            backing,
            node: None,
            unit,
            target,
            ready: 0,
            filling: 0,
            filled: 0,
            leases: 0,
            unreturned: 0,
            waiting: 0,
            keep_free: 0,
            free: 0,
            given: 0,
            failures: 0,
            last_failure: None,
            huge: 0,
            rows: Vec::new(),
        }
    }
}

fn size(bytes: &u64) -> Exact {
    Size::from(*bytes).exact()
}

fn failure(errno: u64, signal: u64) -> String {
    match (i32::try_from(errno), signal) {
        (_, 9) => "the process that populated it was killed, as the kernel does where memory is \
                   short"
            .to_owned(),
        (_, 1..) => format!("the process that populated it ended by signal {signal}"),
        (Ok(errno), 0) => std::io::Error::from_raw_os_error(errno).to_string(),
        (Err(_), 0) => format!("error {errno}"),
    }
}

fn clients(number: u64) -> String {
    match number {
        1 => "1 client is".to_owned(),
        _ => format!("{number} clients are"),
    }
}

/// Returns how an administrator can provide the memory that units lack.
fn more_pages(missing: u64, page_size: u64) -> String {
    if page_size == rustix::param::page_size() as u64 {
        return "end programs that have leases, raise the limit of the broker's control group if it has one, or start the \
             broker with smaller units"
            .to_owned();
    }
    let pages = missing.div_ceil(page_size);
    let plural = if pages == 1 { "" } else { "s" };
    format!(
        "end programs that have leases or huge pages, or reserve {pages} more page{plural} of {}, if \
         the units are of reserved pages",
        size(&page_size)
    )
}

fn none_ready(waited_ms: u64) -> String {
    match waited_ms {
        0 => "no unit is ready".to_owned(),
        _ => format!("no unit was ready within {:?}", Duration::from_millis(waited_ms)),
    }
}

impl Refusal {
    /// Returns a step by which the client or an administrator can prevent the refusal; `None` if no
    /// step is known.
    #[must_use]
    pub fn remedy(&self) -> Option<String> {
        Some(match self {
            Self::NotUnderstood { .. } => {
                "use a client and a broker of one version of hugekit".to_owned()
            }
            Self::NotServed { .. } => "start a broker as this user, or one as root".to_owned(),
            Self::WrongSize { unit, .. } => {
                format!("ask for {}, or start a broker with another --unit", size(unit))
            }
            Self::OverQuota { used: 0, asked, .. } => {
                format!("raise --quota of the broker to {} or more", size(asked))
            }
            Self::OverQuota { .. } => {
                "end programs that have leases, or raise --quota of the broker".to_owned()
            }
            Self::NoneReady { waited_ms: 0, .. } => {
                "wait, or start the broker with a larger --ready".to_owned()
            }
            Self::NoneReady { .. } => {
                "wait longer, or start the broker with a larger --ready".to_owned()
            }
            Self::NoPages { unit, page_size, free, keep_free } => {
                let wanted = unit.saturating_add(*keep_free);
                more_pages(wanted.saturating_sub(*free), *page_size)
            }
            Self::Busy { .. } => "ask again when earlier requests are answered".to_owned(),
            Self::NotPopulated { .. } => {
                "see the limits of the control group that is charged, and the broker's log"
                    .to_owned()
            }
            Self::NoUnits => "start a broker with --unit".to_owned(),
            Self::NoImage => "see the names: hugekit image list".to_owned(),
            Self::ImageExists => {
                "choose another name, or drop that image: hugekit image drop NAME".to_owned()
            }
            Self::TooManyImages { .. } => {
                "drop images, and end the programs that have dropped ones".to_owned()
            }
            Self::TooManyLoads { .. } => "ask again when another load is done".to_owned(),
            Self::NoMemory { .. } => "free memory, or lower --keep-free of the broker".to_owned(),
            Self::NotForAll { .. } => "load it without --for-all".to_owned(),
            Self::NotLoaded(why) => return why.remedy().map(str::to_owned),
            Self::Ending => return None,
        })
    }

    fn code(&self) -> (u16, [u64; FIGURES]) {
        match *self {
            Self::NotUnderstood { newest } => (16, [newest, 0, 0, 0]),
            Self::NotServed { uid, served } => (17, [uid, served, 0, 0]),
            Self::WrongSize { asked, unit } => (18, [asked, unit, 0, 0]),
            Self::OverQuota { asked, used, quota } => (19, [asked, used, quota, 0]),
            Self::NoneReady { waited_ms, present, unit, before } => {
                (20, [waited_ms, present, unit, before])
            }
            Self::NoPages { unit, page_size, free, keep_free } => {
                (21, [unit, page_size, free, keep_free])
            }
            Self::Busy { most, most_of_user } => (22, [most, most_of_user, 0, 0]),
            Self::NotPopulated { errno, signal } => (23, [errno, signal, 0, 0]),
            Self::Ending => (24, [0; FIGURES]),
            Self::NoUnits => (25, [0; FIGURES]),
            Self::NoImage => (26, [0; FIGURES]),
            Self::ImageExists => (27, [0; FIGURES]),
            Self::TooManyImages { most, most_of_user } => (28, [most, most_of_user, 0, 0]),
            Self::NoMemory { asked, free, keep_free } => (29, [asked, free, keep_free, 0]),
            Self::NotForAll { uid, served } => (30, [uid, served, 0, 0]),
            Self::NotLoaded(why) => (31, why.figures()),
            Self::TooManyLoads { most, most_of_user } => (32, [most, most_of_user, 0, 0]),
        }
    }

    fn of_code(code: u16, figures: [u64; FIGURES]) -> Option<Self> {
        let [a, b, c, d] = figures;
        let refusal = match code {
            16 => Self::NotUnderstood { newest: a },
            17 => Self::NotServed { uid: a, served: b },
            18 => Self::WrongSize { asked: a, unit: b },
            19 => Self::OverQuota { asked: a, used: b, quota: c },
            20 => Self::NoneReady { waited_ms: a, present: b, unit: c, before: d },
            21 => Self::NoPages { unit: a, page_size: b, free: c, keep_free: d },
            22 => Self::Busy { most: a, most_of_user: b },
            23 => Self::NotPopulated { errno: a, signal: b },
            24 => Self::Ending,
            25 => Self::NoUnits,
            26 => Self::NoImage,
            27 => Self::ImageExists,
            28 => Self::TooManyImages { most: a, most_of_user: b },
            29 => Self::NoMemory { asked: a, free: b, keep_free: c },
            30 => Self::NotForAll { uid: a, served: b },
            32 => Self::TooManyLoads { most: a, most_of_user: b },
            31 => Self::NotLoaded(NotLoaded::of_figures(figures)?),
            _ => return None,
        };
        // Figures that the refusal does not have are zero.
        (refusal.code() == (code, figures)).then_some(refusal)
    }
}

/// The highest number of figures of a refusal.
const FIGURES: usize = 4;

const LEASE: u16 = 1;
const STATUS_OF: u16 = 2;
const LOAD: u16 = 3;
const GET: u16 = 4;
const DROP: u16 = 5;
const IMAGES: u16 = 6;
const LOADING: u16 = 7;
const GIVE_BACK: u16 = 8;

impl Payer {
    fn code(self) -> u32 {
        match self {
            Self::Broker => 0,
            Self::Client => 1,
            Self::Group => 2,
        }
    }

    fn of_code(code: u32) -> Option<Self> {
        [Self::Broker, Self::Client, Self::Group].into_iter().find(|payer| payer.code() == code)
    }
}

fn backing_of(code: u64) -> Option<Backing> {
    Backing::ALL.iter().copied().find(|backing| backing.code() == code)
}

impl Request {
    /// Encodes the request. If a load has too many ranges, ranges beyond the highest number are
    /// dropped.
    #[must_use]
    pub fn to_message(&self) -> Vec<u8> {
        match self {
            Self::Lease { bytes, wait_ms } => head(LEASE, &[*bytes, *wait_ms]),
            Self::Status => head(STATUS_OF, &[]),
            Self::Images => head(IMAGES, &[]),
            Self::GiveBack { bytes, page_size } => head(GIVE_BACK, &[*bytes, *page_size]),
            Self::Get(name) => of_image(GET, [0; 2], *name),
            Self::Drop(name) => of_image(DROP, [0; 2], *name),
            Self::Load(load) => {
                let mut message = of_image(LOAD, [load.most, load.flags()], load.name);
                load.put_body(&mut message);
                message
            }
        }
    }

    /// Decodes a message.
    ///
    /// # Errors
    /// [`Malformed`] if the bytes are not a valid request.
    pub fn of_message(message: &[u8]) -> Result<Self, Malformed> {
        let length = Malformed::Length { len: message.len() };
        if message.len() < MESSAGE || message.len() > LONGEST_REQUEST {
            return Err(length);
        }
        let (kind, mut rest) = opened(message)?;
        if kind != LOAD && message.len() != MESSAGE {
            return Err(length);
        }
        let [a, b] = rest.numbers()?;
        match (kind, a, b) {
            (LOAD, most, flags) => {
                let name = rest.name()?;
                return Ok(Self::Load(Box::new(Load::of(most, flags, name, rest)?)));
            }
            (GET, 0, 0) => return Ok(Self::Get(rest.name()?)),
            (DROP, 0, 0) => return Ok(Self::Drop(rest.name()?)),
            _ => rest.nothing_else()?,
        }
        match (kind, a, b) {
            (LEASE, bytes, wait_ms) => Ok(Self::Lease { bytes, wait_ms }),
            (STATUS_OF, 0, 0) => Ok(Self::Status),
            (IMAGES, 0, 0) => Ok(Self::Images),
            (GIVE_BACK, bytes, page_size) => Ok(Self::GiveBack { bytes, page_size }),
            _ => Err(Malformed::Meaning),
        }
    }
}

impl Answer {
    /// Encodes the answer. If a status has too many rows, rows beyond the highest number are
    /// dropped.
    #[must_use]
    pub fn to_message(&self) -> Vec<u8> {
        match self {
            Self::Leased { bytes, page_size, payer, huge } => {
                head(LEASE, &[*bytes, *page_size, payer.code().into(), *huge])
            }
            Self::Refused(refusal) => {
                let (code, figures) = refusal.code();
                head(code, &figures)
            }
            Self::Status(status) => status.to_message(),
            Self::Loading { done, total } => head(LOADING, &[*done, *total]),
            Self::Loaded(facts) => head(LOAD, &[facts.bytes, facts.present, facts.huge]),
            Self::Image(facts) => head(GET, &[facts.bytes, facts.present, facts.huge]),
            Self::Dropped => head(DROP, &[]),
            Self::GivenBack { bytes } => head(GIVE_BACK, &[*bytes]),
            Self::Images(rows) => {
                let rows = &rows[..rows.len().min(MOST_IMAGES)];
                let mut message = head(IMAGES, &[rows.len() as u64]);
                rows.iter().for_each(|row| row.put(&mut message));
                message
            }
        }
    }

    /// Decodes a message.
    ///
    /// # Errors
    /// [`Malformed`] if the bytes are not a valid answer.
    pub fn of_message(message: &[u8]) -> Result<Self, Malformed> {
        let (kind, mut rest) = opened(message)?;
        if kind == STATUS_OF {
            return Ok(Self::Status(Box::new(Status::of_message(message.len(), rest)?)));
        }
        if kind == IMAGES {
            return Ok(Self::Images(images_of(message.len(), rest)?));
        }
        if message.len() != MESSAGE {
            return Err(Malformed::Length { len: message.len() });
        }
        let figures: [u64; FIGURES] = rest.numbers()?;
        rest.nothing_else()?;
        if let Some(refusal) = Refusal::of_code(kind, figures) {
            return Ok(Self::Refused(refusal));
        }
        match (kind, figures) {
            (LEASE, [bytes, page_size, payer, huge]) => {
                let payer = u32::try_from(payer).ok().and_then(Payer::of_code);
                let payer = payer.ok_or(Malformed::Meaning)?;
                Ok(Self::Leased { bytes, page_size, payer, huge })
            }
            (LOADING, [done, total, 0, 0]) => Ok(Self::Loading { done, total }),
            (LOAD, [bytes, present, huge, 0]) => {
                Ok(Self::Loaded(ImageFacts { bytes, present, huge }))
            }
            (GET, [bytes, present, huge, 0]) => {
                Ok(Self::Image(ImageFacts { bytes, present, huge }))
            }
            (DROP, [0, 0, 0, 0]) => Ok(Self::Dropped),
            (GIVE_BACK, [bytes, 0, 0, 0]) => Ok(Self::GivenBack { bytes }),
            _ => Err(Malformed::Meaning),
        }
    }
}

/// Returns the rows of a list of images.
fn images_of(len: usize, mut rest: Rest<'_>) -> Result<Vec<ImageRow>, Malformed> {
    let [count] = rest.numbers()?;
    rest.skip_zeroes(MESSAGE - 16)?;
    let count = usize::try_from(count).ok().filter(|&count| count <= MOST_IMAGES);
    let count = count.ok_or(Malformed::Meaning)?;
    if len != MESSAGE + count * images::IMAGE_ROW {
        return Err(Malformed::Length { len });
    }
    (0..count).map(|_| ImageRow::of(&mut rest)).collect()
}

impl Status {
    fn to_message(&self) -> Vec<u8> {
        let rows = &self.rows[..self.rows.len().min(MOST_ROWS)];
        let mut message = head(STATUS_OF, &[rows.len() as u64]);
        let (failure, why) = self.last_failure.as_ref().map_or((0, [0; FIGURES]), Refusal::code);
        let numbers = [
            self.backing.code(),
            self.node.map_or(0, |node| u64::from(node) + 1),
            self.unit,
            self.target,
            self.ready,
            self.filling,
            self.filled,
            self.leases,
            self.unreturned,
            self.waiting,
            self.keep_free,
            self.free,
            self.given,
            self.failures,
            failure.into(),
        ];
        let numbers = numbers.iter().chain(&why).chain([&self.huge]);
        numbers.for_each(|&number| put(&mut message, number));
        rows.iter().for_each(|row| row.put(&mut message));
        message
    }

    fn of_message(len: usize, mut rest: Rest<'_>) -> Result<Self, Malformed> {
        let [count] = rest.numbers()?;
        rest.skip_zeroes(MESSAGE - 16)?;
        let count = usize::try_from(count).ok().filter(|&count| count <= MOST_ROWS);
        let count = count.ok_or(Malformed::Meaning)?;
        if len != MESSAGE + STATUS + count * ROW {
            return Err(Malformed::Length { len });
        }
        let [backing, node, unit, target, ready, filling, filled, leases] = rest.numbers()?;
        let [unreturned, waiting, keep_free, free, given, failures, failure] = rest.numbers()?;
        let why = rest.numbers()?;
        let [huge] = rest.numbers()?;
        let last_failure = match failure {
            0 if why == [0; FIGURES] => None,
            code => {
                let code = u16::try_from(code).map_err(|_| Malformed::Meaning)?;
                Some(Refusal::of_code(code, why).ok_or(Malformed::Meaning)?)
            }
        };
        let node = node.checked_sub(1).map(u32::try_from).transpose();
        let rows = (0..count).map(|_| LeaseRow::of(&mut rest)).collect::<Result<_, _>>()?;
        Ok(Self {
            backing: backing_of(backing).ok_or(Malformed::Meaning)?,
            node: node.map_err(|_| Malformed::Meaning)?,
            unit,
            target,
            ready,
            filling,
            filled,
            leases,
            unreturned,
            waiting,
            keep_free,
            free,
            given,
            failures,
            last_failure,
            huge,
            rows,
        })
    }
}

impl LeaseRow {
    fn put(&self, message: &mut Vec<u8>) {
        put(message, u64::from(self.uid) | u64::from(self.pid) << 32);
        put(message, self.bytes);
        put(message, self.age_ms);
        put(message, u64::from(self.payer.code()) | u64::from(self.is_unreturned) << 32);
    }

    fn of(rest: &mut Rest<'_>) -> Result<Self, Malformed> {
        let [ids, bytes, age_ms, how] = rest.numbers()?;
        let is_unreturned = match how >> 32 {
            0 => false,
            1 => true,
            _ => return Err(Malformed::Meaning),
        };
        let payer = Payer::of_code(how as u32).ok_or(Malformed::Meaning)?;
        Ok(Self { uid: ids as u32, pid: (ids >> 32) as u32, bytes, age_ms, payer, is_unreturned })
    }
}

fn put(message: &mut Vec<u8>, number: u64) {
    message.extend_from_slice(&number.to_le_bytes());
}

/// Returns a message of no more than its head.
fn head(kind: u16, figures: &[u64]) -> Vec<u8> {
    let mut message = Vec::with_capacity(MESSAGE);
    message.extend_from_slice(&MAGIC.to_le_bytes());
    message.extend_from_slice(&VERSION.to_le_bytes());
    message.extend_from_slice(&kind.to_le_bytes());
    figures.iter().for_each(|&figure| put(&mut message, figure));
    message.resize(MESSAGE, 0);
    message
}

/// Returns a request about an image, which ends with its name.
fn of_image(kind: u16, figures: [u64; 2], name: ImageName) -> Vec<u8> {
    let mut message = head(kind, &figures);
    message.truncate(MESSAGE - NAME);
    images::put_name(&mut message, name);
    message
}

/// The rest of a message.
struct Rest<'a>(&'a [u8]);

/// Returns the kind of a message, and what stands behind.
fn opened(message: &[u8]) -> Result<(u16, Rest<'_>), Malformed> {
    let &[a, b, c, d, e, f, g, h, ref rest @ ..] = message else {
        return Err(Malformed::Length { len: message.len() });
    };
    if u32::from_le_bytes([a, b, c, d]) != MAGIC {
        return Err(Malformed::Magic);
    }
    match u16::from_le_bytes([e, f]) {
        VERSION => Ok((u16::from_le_bytes([g, h]), Rest(rest))),
        version => Err(Malformed::Version { version }),
    }
}

impl Rest<'_> {
    fn numbers<const N: usize>(&mut self) -> Result<[u64; N], Malformed> {
        let mut numbers = [0; N];
        for number in &mut numbers {
            *number = u64::from_le_bytes(self.bytes()?);
        }
        Ok(numbers)
    }

    fn bytes<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let Some((bytes, rest)) = self.0.split_first_chunk() else {
            return Err(Malformed::Length { len: self.0.len() });
        };
        self.0 = rest;
        Ok(*bytes)
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn skip_zeroes(&mut self, len: usize) -> Result<(), Malformed> {
        let (zeroes, rest) =
            self.0.split_at_checked(len).ok_or(Malformed::Length { len: self.0.len() })?;
        self.0 = rest;
        if zeroes.iter().all(|&byte| byte == 0) { Ok(()) } else { Err(Malformed::Meaning) }
    }

    fn nothing_else(&mut self) -> Result<(), Malformed> {
        self.skip_zeroes(self.0.len())
    }
}

impl Malformed {
    /// Returns the kind of the error.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        ErrorKind::Unsupported
    }
}

impl Refusal {
    /// Returns the kind of the error.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::NotUnderstood { .. } => ErrorKind::Unsupported,
            Self::NotServed { .. } => ErrorKind::NotPermitted,
            Self::WrongSize { .. } => ErrorKind::Invalid,
            Self::OverQuota { .. }
            | Self::NoneReady { .. }
            | Self::NoPages { .. }
            | Self::Busy { .. }
            | Self::TooManyImages { .. }
            | Self::TooManyLoads { .. }
            | Self::NoMemory { .. }
            | Self::NotLoaded(NotLoaded::NoMemory | NotLoaded::TooLarge { .. })
            | Self::NotPopulated { .. } => ErrorKind::NoMemory,
            Self::NoImage | Self::NotLoaded(_) => ErrorKind::Invalid,
            Self::NoUnits => ErrorKind::Unsupported,
            Self::NotForAll { .. } => ErrorKind::NotPermitted,
            Self::Ending | Self::ImageExists => ErrorKind::Conflict,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn refusals() -> Vec<Refusal> {
        let mut refusals = vec![
            Refusal::NotUnderstood { newest: 7 },
            Refusal::NotServed { uid: 1000, served: 0 },
            Refusal::WrongSize { asked: 5, unit: 4 << 30 },
            Refusal::OverQuota { asked: 4 << 30, used: 8 << 30, quota: 10 << 30 },
            Refusal::NoneReady { waited_ms: 1, present: 2, unit: 3, before: 4 },
            Refusal::NoPages { unit: 1, page_size: 2, free: 3, keep_free: 4 },
            Refusal::Busy { most: 256, most_of_user: 32 },
            Refusal::NotPopulated { errno: 12, signal: 9 },
            Refusal::Ending,
            Refusal::NoUnits,
            Refusal::NoImage,
            Refusal::ImageExists,
            Refusal::TooManyImages { most: 2, most_of_user: 1 },
            Refusal::NoMemory { asked: 1, free: 2, keep_free: 3 },
            Refusal::NotForAll { uid: 1000, served: 0 },
            Refusal::TooManyLoads { most: 2, most_of_user: 1 },
        ];
        refusals.extend(not_loaded().map(Refusal::NotLoaded));
        refusals
    }

    fn not_loaded() -> [NotLoaded; 12] {
        [
            NotLoaded::Nothing,
            NotLoaded::NoFile { nth: 1 },
            NotLoaded::Changed { nth: 1, had: 2, has: 3 },
            NotLoaded::Read { nth: 1, at: 2, errno: 5 },
            NotLoaded::Range { from: 1, len: 2, to: 3 },
            NotLoaded::Delta { nth: 1 },
            NotLoaded::OtherState { nth: 1 },
            NotLoaded::OtherLength { nth: 1, delta: 2, image: 3 },
            NotLoaded::TooLarge { most: 7 },
            NotLoaded::NoMemory,
            NotLoaded::SavedVm { nth: 1 },
            NotLoaded::Kernel { errno: 22 },
        ]
    }

    fn name() -> ImageName {
        "web".parse().unwrap()
    }

    fn requests() -> Vec<Request> {
        let range = ImageRange { from: 1, len: 2, to: 3 };
        let load = Load {
            name: name(),
            most: 1 << 30,
            is_for_all: true,
            tells_progress: true,
            state: Some([7; 16]),
            ranges: vec![range; MOST_RANGES],
        };
        let told = Load { is_for_all: false, state: None, ranges: vec![], ..load.clone() };
        let plain = Load { tells_progress: false, ..told.clone() };
        vec![
            Request::Status,
            Request::Lease { bytes: 1 << 40, wait_ms: 12 },
            Request::Images,
            Request::GiveBack { bytes: 1 << 40, page_size: 2 << 20 },
            Request::Get(name()),
            Request::Drop(name()),
            Request::Load(Box::new(plain)),
            Request::Load(Box::new(told)),
            Request::Load(Box::new(load)),
        ]
    }

    fn answers() -> Vec<Answer> {
        let row = LeaseRow {
            uid: u32::MAX,
            pid: 7,
            bytes: 1 << 30,
            age_ms: 5,
            payer: Payer::Client,
            is_unreturned: true,
        };
        let status = Status {
            node: Some(0),
            ready: 3,
            failures: 1,
            last_failure: Some(Refusal::NotPopulated { errno: 12, signal: 0 }),
            huge: 5,
            rows: vec![row, LeaseRow { payer: Payer::Group, is_unreturned: false, ..row }],
            ..Status::new(Backing::Hugetlb2M, 4 << 30, 4)
        };
        let mut answers = vec![
            Answer::Leased { bytes: 1 << 30, page_size: 2 << 20, payer: Payer::Group, huge: 7 },
            Answer::Status(Box::new(Status::new(Backing::Base, 1, 0))),
            Answer::Status(Box::new(status)),
        ];
        answers.extend(refusals().into_iter().map(Answer::Refused));
        let facts = ImageFacts { bytes: 3, present: 2, huge: 1 };
        let image = ImageRow {
            name: name(),
            facts,
            device: 1,
            inode: 2,
            uid: u32::MAX,
            is_for_all: true,
            is_dropped: true,
            age_ms: 5,
        };
        let other = ImageRow { is_for_all: false, is_dropped: false, ..image };
        answers.extend([
            Answer::Loading { done: 1, total: 1 << 40 },
            Answer::Loaded(facts),
            Answer::Image(facts),
            Answer::Dropped,
            Answer::GivenBack { bytes: 1 << 40 },
            Answer::Images(vec![]),
            Answer::Images(vec![image, other]),
        ]);
        answers
    }

    #[test]
    fn each_backing_is_in_messages_and_in_their_documentation() {
        let page = include_str!("../PROTOCOL.md");
        let mut codes = Vec::new();
        for &backing in Backing::ALL {
            let answer = Answer::Status(Box::new(Status::new(backing, 1, 0)));
            let message = answer.to_message();
            assert_eq!(Answer::of_message(&message), Ok(answer));
            codes.push((backing.code(), backing.option()));
        }
        codes.sort_unstable();
        let names: Vec<_> = codes.iter().map(|(code, name)| format!("{code} {name}")).collect();
        let row = format!("0       backing, as --backing names it: {}\n", names.join(", "));
        assert!(page.contains(&row), "PROTOCOL.md lacks: {row}");
    }

    #[test]
    fn message_is_read_as_what_was_written() {
        for request in requests() {
            assert!(request.to_message().len() <= LONGEST_REQUEST);
            assert_eq!(Request::of_message(&request.to_message()), Ok(request));
        }
        for answer in answers() {
            let message = answer.to_message();
            assert!(message.len() >= MESSAGE && message.len() <= LONGEST);
            assert_eq!(Answer::of_message(&message), Ok(answer));
        }
    }

    #[test]
    fn status_of_many_leases_is_cut_to_what_a_message_may_hold() {
        let row = LeaseRow {
            uid: 1,
            pid: 1,
            bytes: 1,
            age_ms: 1,
            payer: Payer::Broker,
            is_unreturned: false,
        };
        let mut status = Status::new(Backing::Base, 1, 0);
        status.rows = vec![row; MOST_ROWS + 1];
        let message = Answer::Status(Box::new(status)).to_message();
        assert_eq!(message.len(), LONGEST);
        let Ok(Answer::Status(read)) = Answer::of_message(&message) else { panic!("no status") };
        assert_eq!(read.rows.len(), MOST_ROWS);
    }

    #[test]
    fn list_of_many_images_is_cut_to_what_a_message_may_hold() {
        let rows = answers().into_iter().find_map(|answer| match answer {
            Answer::Images(rows) if !rows.is_empty() => Some(rows),
            _ => None,
        });
        let rows = vec![rows.unwrap()[0]; MOST_IMAGES + 1];
        let message = Answer::Images(rows).to_message();
        assert!(message.len() <= LONGEST);
        let Ok(Answer::Images(read)) = Answer::of_message(&message) else { panic!("no images") };
        assert_eq!(read.len(), MOST_IMAGES);
    }

    #[test]
    fn message_that_is_short_long_or_of_another_version_is_said_to_be_that() {
        let message = Request::Status.to_message();
        for len in 0..MESSAGE {
            assert!(matches!(Request::of_message(&message[..len]), Err(Malformed::Length { .. })));
        }
        let long = [&message[..], &[0]].concat();
        assert_eq!(Request::of_message(&long), Err(Malformed::Length { len: MESSAGE + 1 }));
        let mut newer = message.clone();
        newer[4] = 2;
        assert_eq!(Request::of_message(&newer), Err(Malformed::Version { version: 2 }));
        let mut other = message;
        other[0] = b'H';
        assert_eq!(Request::of_message(&other), Err(Malformed::Magic));
    }

    /// Room for later versions of the same length: what has no meaning yet may get one.
    #[test]
    fn message_with_bytes_of_no_meaning_is_refused() {
        let request = Request::Lease { bytes: 1, wait_ms: 1 }.to_message();
        for at in 24..MESSAGE {
            let mut changed = request.clone();
            changed[at] = 1;
            assert_eq!(Request::of_message(&changed), Err(Malformed::Meaning), "byte {at}");
        }
        let refused = Answer::Refused(Refusal::Ending).to_message();
        for at in 8..MESSAGE {
            let mut changed = refused.clone();
            changed[at] = 1;
            assert_eq!(Answer::of_message(&changed), Err(Malformed::Meaning), "byte {at}");
        }
    }

    /// The figures of no failure were once read as nothing.
    #[test]
    fn every_byte_of_a_status_means_something_or_is_refused() {
        let status = Answer::Status(Box::new(Status::new(Backing::Base, 1, 0))).to_message();
        for at in 8..status.len() {
            let mut changed = status.clone();
            changed[at] = 1;
            if let Ok(answer) = Answer::of_message(&changed) {
                assert_eq!(answer.to_message(), changed, "byte {at}");
            }
        }
    }

    proptest! {
        /// A message that is understood is encoded to the same bytes: no two messages mean the same.
        #[test]
        fn bytes_of_a_stranger_mean_one_thing_or_nothing(
            which in 0..50_usize, at in 0..LONGEST, byte: u8, len in 0..LONGEST,
        ) {
            let mut messages: Vec<_> = answers().iter().map(Answer::to_message).collect();
            messages.extend(requests().iter().map(Request::to_message));
            let mut message = messages.swap_remove(which % messages.len());
            if len % 4 == 0 {
                message.truncate(len);
            }
            if let Some(place) = message.get_mut(at) {
                *place = byte;
            }
            if let Ok(request) = Request::of_message(&message) {
                prop_assert_eq!(request.to_message(), message.clone());
            }
            if let Ok(answer) = Answer::of_message(&message) {
                prop_assert_eq!(answer.to_message(), message);
            }
        }
    }

    #[test]
    fn refusal_has_figures_and_a_remedy() {
        let said = Refusal::OverQuota { asked: 4 << 30, used: 8 << 30, quota: 10 << 30 };
        let message = "4 GiB were asked for, but the user's leases are 8 GiB of a quota of 10 GiB";
        assert_eq!(said.to_string(), message);
        let said = |unit, page_size| {
            let (free, keep_free) = (1 << 20, 4 << 20);
            Refusal::NoPages { unit, page_size, free, keep_free }.remedy().unwrap()
        };
        assert!(said(3 << 20, 2 << 20).contains("reserve 3 more pages of 2 MiB, if"));
        assert!(said(1 << 20, 1 << 30).contains("reserve 1 more page of 1 GiB, if"));
        let base = rustix::param::page_size() as u64;
        assert!(!said(1 << 20, base).contains("reserve"));
        assert!(said(1 << 20, 16 * base).contains("reserve"), "reserved pages may be small");
        let said = |before| Refusal::NoneReady { waited_ms: 0, present: 0, unit: 4096, before };
        assert!(said(1).to_string().ends_with(", and 1 client is served before"));
        assert!(said(2).to_string().ends_with(", and 2 clients are served before"));
        let without: Vec<_> =
            refusals().into_iter().filter(|refusal| refusal.remedy().is_none()).collect();
        assert!(without.contains(&Refusal::Ending) && without.len() == 6, "{without:?}");
    }
}
