//! The table of covered functions in `docs/operating/preload.md` is that of the library's exported symbols.
//!
//! `HEADWATER_WRITE_COVERAGE=1 cargo test --package headwater-preload --test coverage` writes it.
#![expect(clippy::unwrap_used, reason = "a test that cannot read the library or the page fails")]
#![cfg(all(target_arch = "x86_64", target_os = "linux", target_env = "gnu"))]

use object::{Object as _, ObjectSymbol as _};
use std::collections::BTreeSet;
use std::path::Path;

const BEGIN: &str = "<!-- coverage: written by the test `coverage` of crates/preload -->\n";
const END: &str = "<!-- end of coverage -->\n";

/// The exported functions: what the library does, and what it leaves to the C library or the kernel.
const COVERED: [(&str, &str, &str); 19] = [
    (
        "memcpy",
        "up to 128 bytes; from `PREFAULT_BYTES` on, absent pages first; from `STREAM_BYTES` on, past the cache",
        "lengths between; ranges that overlap",
    ),
    ("memmove", "as `memcpy`", "as `memcpy`"),
    ("memset", "as `memcpy`", "lengths between"),
    ("mempcpy", "as `memcpy`", "as `memcpy`"),
    ("memcmp", "from `COMPARE_BYTES` on", "shorter ranges: by default all"),
    ("bcmp", "as `memcmp`", "as `memcmp`"),
    (
        "__memcpy_chk",
        "as `memcpy`, in programs built with `_FORTIFY_SOURCE`",
        "the end of the program when a target is too short",
    ),
    ("__memmove_chk", "as `__memcpy_chk`", "as `__memcpy_chk`"),
    ("__memset_chk", "as `__memcpy_chk`", "as `__memcpy_chk`"),
    ("__mempcpy_chk", "as `__memcpy_chk`", "as `__memcpy_chk`"),
    ("pread", "from `FILE_BYTES` on, of a file on DAX: by a mapping", "everything else (below)"),
    ("pread64", "as `pread`", "as `pread`"),
    (
        "pwrite",
        "from `FILE_BYTES` on, inside a file on DAX: by a mapping, durable at its return",
        "everything else (below)",
    ),
    ("pwrite64", "as `pwrite`", "as `pwrite`"),
    ("close", "removes the mapping of the file", "the close"),
    ("fclose", "as `close`", "as `close`"),
    ("dup2", "removes the mapping of the file that had the number", "the copy of the descriptor"),
    ("dup3", "as `dup2`", "as `dup2`"),
    ("close_range", "removes all mappings", "the close"),
];

/// Functions that move bytes and that the library leaves alone.
const LEFT: [(&str, &str); 12] = [
    ("read", "its offset belongs to the open file, which processes share"),
    ("write", "as `read`; it also extends files"),
    ("readv", "as `read`"),
    ("writev", "as `write`"),
    ("preadv", "not built"),
    ("pwritev", "not built"),
    ("preadv2", "its flags change what it promises"),
    ("pwritev2", "its flags change what it promises"),
    ("sendfile", "the kernel moves the bytes"),
    ("copy_file_range", "the kernel moves the bytes"),
    ("__pread_chk", "not built: `_FORTIFY_SOURCE` with a length that the compiler does not know"),
    ("__pread64_chk", "as `__pread_chk`"),
];

fn exported() -> BTreeSet<String> {
    let path = std::env::current_exe().unwrap().parent().unwrap().join("libheadwater_preload.so");
    let bytes = std::fs::read(path).unwrap();
    let library = object::File::parse(&*bytes).unwrap();
    let defined = library.dynamic_symbols().filter(|symbol| symbol.is_definition() && symbol.is_global());
    defined.map(|symbol| symbol.name().unwrap().to_owned()).collect()
}

fn table(exported: &BTreeSet<String>) -> String {
    let mut text = String::from(
        "| function | the library does | the C library or the kernel does |\n| --- | --- | --- |\n",
    );
    for (name, ours, left) in COVERED.iter().filter(|(name, ..)| exported.contains(*name)) {
        text += &format!("| `{name}` | {ours} | {left} |\n");
    }
    for (name, reason) in LEFT.iter().filter(|(name, _)| !exported.contains(*name)) {
        text += &format!("| `{name}` | nothing: {reason} | all |\n");
    }
    text
}

#[test]
fn every_exported_function_has_a_row_and_no_row_lacks_its_function() {
    let described: BTreeSet<String> = COVERED.iter().map(|(name, ..)| (*name).to_owned()).collect();
    assert_eq!(exported(), described, "COVERED of this test describes what the library exports");
    let left: Vec<&str> =
        LEFT.iter().map(|(name, _)| *name).filter(|name| described.contains(*name)).collect();
    assert!(left.is_empty(), "{left:?} are exported: they belong to COVERED");
}

#[test]
fn page_has_the_table_of_the_library() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/operating/preload.md");
    let page = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = page.split_once(BEGIN).expect("the page has the line before the table");
    let (found, after) = rest.split_once(END).expect("the page has the line behind the table");
    let expected = table(&exported());
    if std::env::var_os("HEADWATER_WRITE_COVERAGE").is_some() {
        std::fs::write(&path, format!("{before}{BEGIN}{expected}{END}{after}")).unwrap();
        return;
    }
    assert_eq!(
        found, expected,
        "write it: HEADWATER_WRITE_COVERAGE=1 cargo test --package headwater-preload --test coverage"
    );
}
