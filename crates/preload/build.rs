//! Tells the linker that the library is never unloaded: its signal handler must outlive a `dlclose`.

fn main() {
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,now");
    println!("cargo::rerun-if-changed=build.rs");
}
