//! The checked-in header is the one that cbindgen generates from the sources.
//!
//! Input: `src` and `cbindgen.toml`. Output: `include/headwater.h`, compared; `make header` writes it instead.

use std::path::Path;

#[test]
fn header_matches_the_sources() {
    let crate_dir = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut builder = cbindgen::Builder::new()
        .with_config(cbindgen::Config::from_file(crate_dir.join("cbindgen.toml")).unwrap());
    for file in [
        "code",
        "message",
        "handles",
        "config",
        "pool",
        "memory",
        "device_segment",
        "segments",
        "statistics",
        "device",
        "queue",
        "handle",
        "param",
        "transfer",
        "aio",
        "quota",
    ] {
        builder = builder.with_src(crate_dir.join("src").join(file).with_extension("rs"));
    }
    let mut made = Vec::new();
    builder.generate().unwrap().write(&mut made);
    // The `# Safety` section of a Rust function states, for C, what its pointers must be.
    let made = String::from_utf8(made).unwrap().replace("// # Safety\n", "// Pointers:\n");
    let path = crate_dir.join("include/headwater.h");
    if std::env::var_os("HEADWATER_WRITE_HEADER").is_some() {
        std::fs::write(&path, &made).unwrap();
        return;
    }
    let kept = std::fs::read_to_string(&path).unwrap();
    assert!(kept == made, "include/headwater.h does not match src: run `make header` and commit it");
}
