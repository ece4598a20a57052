//! The checked-in header is the one that cbindgen generates from the sources.
//!
//! Input: `src` and `cbindgen.toml`. Output: `include/headwater.h`, compared; `make header` writes it instead.

use headwater_capi::version::hw_version;
use std::path::Path;

/// Returns the macros that state the version of this crate.
fn version_macros() -> String {
    let (major, minor, patch) =
        (env!("CARGO_PKG_VERSION_MAJOR"), env!("CARGO_PKG_VERSION_MINOR"), env!("CARGO_PKG_VERSION_PATCH"));
    format!(
        "\n// The version of this header; hw_version returns that of the library.\n\
         #define HW_VERSION_MAJOR {major}\n\
         #define HW_VERSION_MINOR {minor}\n\
         #define HW_VERSION_PATCH {patch}\n\
         // The same as one number, 8 bits each for minor and patch, so that versions compare by <.\n\
         #define HW_VERSION (HW_VERSION_MAJOR << 16 | HW_VERSION_MINOR << 8 | HW_VERSION_PATCH)"
    )
}

#[test]
fn version_at_run_time_is_that_of_the_header() {
    if std::env::var_os("HEADWATER_WRITE_HEADER").is_some() {
        // The other test writes the header at this moment.
        return;
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("include/headwater.h");
    let header = std::fs::read_to_string(path).unwrap();
    let number = |name: &str| -> u32 {
        let define = format!("#define HW_VERSION_{name} ");
        header.lines().find_map(|line| line.strip_prefix(&define)).unwrap().parse().unwrap()
    };
    assert_eq!(hw_version(), number("MAJOR") << 16 | number("MINOR") << 8 | number("PATCH"));
}

#[test]
fn header_matches_the_sources() {
    let crate_dir = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config {
        after_includes: Some(version_macros()),
        ..cbindgen::Config::from_file(crate_dir.join("cbindgen.toml")).unwrap()
    };
    let mut builder = cbindgen::Builder::new().with_config(config);
    for file in [
        "code",
        "message",
        "pool_handles",
        "config",
        "pool",
        "memory",
        "device_segment",
        "segments",
        "statistics",
        "pool_settings",
        "device",
        "device_memory",
        "import",
        "buffer_request",
        "queue",
        "handle",
        "cache",
        "param",
        "transfer",
        "aio",
        "job_memory",
        "move_step",
        "open_job",
        "move_job",
        "mover_settings",
        "shared_mover",
        "mover",
        "quota",
        "version",
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
