//! Arguments of programs that start QEMU, as they were on the machines where they ran.

use proptest::prelude::*;

use super::*;
use hugekit_testing::trials::skipped;

const GIB: usize = 1 << 30;

fn words(text: &str) -> Vec<OsString> {
    text.split(' ').map(Into::into).collect()
}

/// The arguments with the files `/lease/0`, `/lease/1` in the place of memory.
fn replaced(text: &str, backing: Backing) -> String {
    let asked = words(text);
    let mut arguments = asked.clone();
    for (number, memory) in GuestMemory::of_arguments(&asked).iter().enumerate() {
        memory.replace(&mut arguments, &format!("/lease/{number}"), backing);
    }
    arguments.join(OsStr::new(" ")).into_string().unwrap()
}

/// The same text, but with the names of JSON in one order.
fn sorted(text: &str) -> String {
    let json = |word: &str| match serde_json::from_str::<serde_json::Value>(word) {
        Ok(value) if word.starts_with('{') => value.to_string(),
        _ => word.to_owned(),
    };
    text.split(' ').map(json).collect::<Vec<_>>().join(" ")
}

/// Arguments of libvirt 9.0.0 for QEMU 7.2 with one kind of memory, and the object that replaces it.
const OF_LIBVIRT: &[(&str, &str, &str)] = &[
    (
        "without memoryBacking",
        r#"{"qom-type":"memory-backend-ram","id":"pc.ram","size":1073741824}"#,
        r#"{"qom-type":"memory-backend-file","id":"pc.ram","mem-path":"/lease/0","share":true,"x-use-canonical-path-for-ramblock-id":false,"size":1073741824}"#,
    ),
    (
        "access mode='shared'",
        r#"{"qom-type":"memory-backend-file","id":"pc.ram","mem-path":"/var/lib/libvirt/qemu/ram/-1-a/pc.ram","share":true,"x-use-canonical-path-for-ramblock-id":false,"size":1073741824}"#,
        r#"{"qom-type":"memory-backend-file","id":"pc.ram","mem-path":"/lease/0","share":true,"x-use-canonical-path-for-ramblock-id":false,"size":1073741824}"#,
    ),
    (
        "source type='memfd', allocation mode='immediate' threads='2'",
        r#"{"qom-type":"memory-backend-memfd","id":"pc.ram","share":true,"x-use-canonical-path-for-ramblock-id":false,"prealloc":true,"prealloc-threads":2,"size":1073741824}"#,
        r#"{"qom-type":"memory-backend-file","id":"pc.ram","mem-path":"/lease/0","share":true,"x-use-canonical-path-for-ramblock-id":false,"size":1073741824}"#,
    ),
    (
        "hugepages of 2 MiB, numatune mode='strict'",
        r#"{"qom-type":"memory-backend-memfd","id":"pc.ram","hugetlb":true,"hugetlbsize":2097152,"share":true,"x-use-canonical-path-for-ramblock-id":false,"prealloc":true,"size":1073741824,"host-nodes":[0],"policy":"bind","prealloc-context":"tc-pc.ram"}"#,
        r#"{"qom-type":"memory-backend-file","id":"pc.ram","mem-path":"/lease/0","share":true,"x-use-canonical-path-for-ramblock-id":false,"size":1073741824,"host-nodes":[0],"policy":"bind"}"#,
    ),
];

#[test]
fn memory_of_libvirt_is_replaced() {
    for (kind, object, replacement) in OF_LIBVIRT {
        let around = |object| {
            format!(
                "-name guest=a,debug-threads=on -S -machine pc-i440fx-7.2,usb=off,memory-backend=pc.ram -accel kvm \
                 -m 1024 -object {object} -overcommit mem-lock=off -smp 1 -msg timestamp=on"
            )
        };
        let asked = around(object);
        assert_eq!(
            sorted(&replaced(&asked, Backing::Hugetlb2M)),
            sorted(&around(replacement)),
            "{kind}"
        );
        let memory = &GuestMemory::of_arguments(&words(&asked))[0];
        let page_size = if kind.starts_with("hugepages") { HUGE_PAGE_BYTES } else { 0 };
        assert_eq!((memory.bytes, memory.page_size), (GIB, page_size as u64), "{kind}");
    }
}

#[test]
fn memory_of_two_nodes_is_two_leases() {
    let object = |node: u32, end: &str| {
        format!(
            r#"-object {{"qom-type":"memory-backend-file","id":"ram-node{node}","mem-path":"{end}","share":true,"size":536870912,"host-nodes":[{node}],"policy":"bind"}} -numa node,nodeid={node},cpus={node},memdev=ram-node{node}"#
        )
    };
    let ram = "/var/lib/libvirt/qemu/ram/-1-a/ram-node";
    let asked = format!("{} {}", object(0, &format!("{ram}0")), object(1, &format!("{ram}1")));
    let wanted = format!("{} {}", object(0, "/lease/0"), object(1, "/lease/1"));
    assert_eq!(sorted(&replaced(&asked, Backing::Hugetlb2M)), sorted(&wanted));
    let nodes: Vec<_> =
        GuestMemory::of_arguments(&words(&asked)).into_iter().map(|memory| memory.nodes).collect();
    assert_eq!(nodes, [[0], [1]]);
}

#[test]
fn objects_of_names_and_values_are_replaced() {
    let around = |object: &str| format!("-M q35,memory-backend=m --object {object} -m 4G");
    for (asked, wanted) in [
        (
            "memory-backend-memfd,id=m,size=4G,share=on,prealloc=on,hugetlb=on,hugetlbsize=2M,seal=off",
            "memory-backend-file,id=m,size=4G,share=on,mem-path=/lease/0",
        ),
        (
            "qom-type=memory-backend-ram,size=4096M,id=m,merge=off,reserve=off",
            "qom-type=memory-backend-file,size=4096M,id=m,merge=off,\
             x-use-canonical-path-for-ramblock-id=off,mem-path=/lease/0,share=on",
        ),
        (
            "memory-backend-file,id=m,size=4G,mem-path=/dev/shm,share=on,discard-data=on",
            "memory-backend-file,id=m,size=4G,mem-path=/lease/0,share=on",
        ),
    ] {
        if asked.contains("/dev/shm") && !is_folder_of_memory(Path::new("/dev/shm")) {
            skipped("/dev/shm is no folder of memory");
            continue;
        }
        assert_eq!(replaced(&around(asked), Backing::Hugetlb2M), around(wanted));
        assert_eq!(GuestMemory::of_arguments(&words(&around(asked)))[0].bytes, 4 * GIB);
        let aligned = replaced(&around(asked), Backing::Thp);
        assert!(aligned.contains(",align=2097152 "), "{aligned}");
    }
}

#[test]
fn memory_of_the_user_stays() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("m");
    std::fs::write(&file, "content").unwrap();
    let (folder, file) = (folder.path().display(), file.display());
    for object in [
        format!("memory-backend-file,id=m,size=4G,share=on,mem-path={file}"),
        format!("memory-backend-file,id=m,size=4G,share=on,mem-path={folder}/new"),
        "memory-backend-file,id=m,size=4G,share=on,mem-path=/sys".to_owned(),
        "memory-backend-file,id=m,size=4G,share=on".to_owned(),
        "memory-backend-file,id=m,size=4G,share=off,mem-path=/dev/shm".to_owned(),
        "memory-backend-file,id=m,size=4G,readonly=on,mem-path=/dev/shm".to_owned(),
        "memory-backend-file,id=m,size=4G,pmem=on,mem-path=/dev/shm".to_owned(),
        "memory-backend-file,id=m,size=4G,offset=2M,mem-path=/dev/shm".to_owned(),
        "memory-backend-ram,id=m,size=4G,share=off".to_owned(),
        "memory-backend-ram,id=other,size=4G".to_owned(),
        "memory-backend-ram,id=m,size=much".to_owned(),
        "memory-backend-ram,id=m,size=0".to_owned(),
        "memory-backend-ram,id=m".to_owned(),
        "memory-backend-epc,id=m,size=4G".to_owned(),
        r#"{"qom-type":"memory-backend-ram","id":"m","size":4,"share":false}"#.to_owned(),
    ] {
        let asked = format!("-machine pc,memory-backend=m -object {object}");
        assert_eq!(replaced(&asked, Backing::Thp), asked);
    }
}

#[test]
fn questions_and_machines_without_objects_stay() {
    let object = "-machine pc,memory-backend=m -object memory-backend-ram,id=m,size=4G";
    for asked in [
        "-version",
        "--help",
        "-machine help",
        "-cpu help",
        "-m 4G -mem-prealloc -mem-path /dev/hugepages",
        "-S -no-user-config -nodefaults -nographic -machine none,accel=kvm:tcg -qmp unix:/m,server=on,wait=off -daemonize",
        "-machine pc,memory-backend=m -object",
        &format!("{object} -version"),
        &format!("{object} --help"),
    ] {
        assert_eq!(replaced(asked, Backing::Thp), asked);
    }
    assert_ne!(replaced(object, Backing::Thp), object);
}

#[test]
fn memory_that_the_kernel_would_merge_is_known() {
    let is_mergeable = |object: &str, machine: &str| {
        let asked = format!("-machine {machine},memory-backend=m -object {object},id=m,size=4G");
        GuestMemory::of_arguments(&words(&asked))[0].is_mergeable
    };
    assert!(is_mergeable("memory-backend-ram", "pc"));
    assert!(is_mergeable("memory-backend-ram,merge=on", "pc,mem-merge=on"));
    for object in
        ["memory-backend-ram,merge=off", "memory-backend-ram,share=on", "memory-backend-memfd"]
    {
        assert!(!is_mergeable(object, "pc"), "{object}");
    }
    assert!(!is_mergeable("memory-backend-ram", "pc,mem-merge=off"));
}

/// Any argument that QEMU may get, except a type of memory that can be replaced.
fn argument() -> impl Strategy<Value = OsString> {
    let bytes = proptest::collection::vec(any::<u8>(), 0..12);
    prop_oneof![
        bytes.prop_map(std::os::unix::ffi::OsStringExt::from_vec),
        prop::sample::select(vec![
            "-object",
            "--object",
            "-machine",
            "-numa",
            "pc,memory-backend=m",
            "node,memdev=m",
            "secret,id=m,size=1G",
            "memory-backend-epc,id=m,size=1G",
            "memory-backend-ram,size=1G",
            r#"{"qom-type":"memory-backend-file","id":"m","size":1}"#,
        ])
        .prop_map(OsString::from),
    ]
}

proptest! {
    #[test]
    fn arguments_without_memory_objects_stay_byte_for_byte(
        asked in proptest::collection::vec(argument(), 0..12)
    ) {
        prop_assert_eq!(GuestMemory::of_arguments(&asked), []);
    }
}
