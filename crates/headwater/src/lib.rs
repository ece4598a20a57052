//! The crate for Rust programs: a device by its URL, and the crates below by name.
//!
//! | URL | the device |
//! | --- | --- |
//! | `mem:64MiB` | the ssd device in this process, in memory, lost with the process |
//! | `file:DIR`, or a path | the ssd device in this process, on the flash file of a data directory, created if absent |
//! | `io-uring:PATH` | a file or a block device, as blocks, bypassing the page cache |
//! | `vfio:0000:00:04.0` | an NVMe SSD by this project's driver; its PCI function is bound to vfio-pci |
//! | `nvme-ng:/dev/ngXnY` | a namespace of the kernel's NVMe driver, by passthrough commands |
//! | `attach:PATH` | in a daemon on this machine, through shared memory; `PATH` is its attach socket |
//! | `nvme-tcp://HOST:PORT/NQN` | on a network |
//! | `null:1GiB` | in this process: completes at the doorbell, transfers nothing; shows the cost of the layers above |
//! | `model:1GiB` | in this process: a model of latency, `fixed=60us`, `per-kib=300ns`, `units=32`, `jitter=PERCENT`; `keep=1` keeps blocks |
//!
//! Parameters follow a `?`, joined by `&`. `ns=N` is the namespace, by default 1. `capacity=SIZE` is for a new `file:`
//! device. `psk=FILE` makes `nvme-tcp:` connect inside TLS with the host key in that file (`host=NQN` chooses among
//! several); it needs the feature `tls`. `create=SIZE` makes `io-uring:` create the file if there is none. `poll=1`,
//! for devices whose completions can be polled, and `plain=1`, which makes plain system calls instead of using
//! io_uring, are for `io-uring:` and `nvme-ng:`. The latter has one namespace, with any number; `partition=N` limits
//! all access to that partition.
//!
//! Every device takes the settings of its pool of memory, uDMA's m, M and t among them: `pool-chunk=4MiB` (m, which then
//! does not adapt to the load), `pool-cap=1GiB` (M), `pool-idle=10s` (t), `pool-tiers=paper-5.2` (also `paper-4.1`,
//! `calibrated`, or `SMALL:LARGE` in bytes), `pool-static=3MiB` (the static tier; 0 for none) and `pool-node=0` (the
//! memory node). [`Device::open_with`] takes them as [`PoolSettings`].
//!
//! ```
//! use headwater::Device;
//!
//! let mut device = Device::open("mem:64MiB")?;
//! device.put(b"greeting", b"hello")?;
//! assert_eq!(device.get(b"greeting")?.as_deref(), Some(&b"hello"[..]));
//! # Ok::<(), headwater::IoError>(())
//! ```
//!
//! A part of a value, read from an offset on:
//!
//! ```
//! use headwater::prelude::*;
//!
//! let mut device = Device::open("mem:64MiB")?;
//! device.put(b"greeting", b"hello, world")?;
//! let mut word = [0; 5];
//! let part = device.get_part(b"greeting", GetOptions { offset: 7, ..GetOptions::default() }, &mut word)?;
//! assert_eq!((part, &word), (Some(ValuePart { bytes: 5, value_bytes: 12 }), b"world"));
//! # Ok::<(), IoError>(())
//! ```
//!
//! Many commands at once, without blocking:
//!
//! ```
//! use headwater::prelude::*;
//!
//! let mut device = Device::open("mem:64MiB")?;
//! let buffer = device.buffer(8 * 4_096)?;
//! let mut queue = device.queue(8)?;
//! for token in 0..8_u8 {
//!     let value = buffer.slice(usize::from(token) * 4_096, 4_096)?;
//!     value.write(0, &[token; 4_096])?;
//!     queue.submit(Command::put(1, &[token], value, StoreCondition::Always)?, token.into())?;
//! }
//! while let Some(completion) = queue.wait(None)? {
//!     completion.into_result()?;
//! }
//! # Ok::<(), IoError>(())
//! ```
//!
//! A handle for blocks, with its own policies, over one queue or several:
//!
//! ```
//! use headwater::prelude::*;
//!
//! let mut device = Device::open("model:16MiB?fixed=10us&keep=1")?;
//! let mut handle = device.handle(32)?.scheduling(SchedulingPolicy::share(&[3, 1])).build()?;
//! let mut buffer = device.buffer(4_096)?;
//! if let Some(bytes) = buffer.bytes_mut() {
//!     bytes.fill(7);
//! }
//! let buffer = handle.write(8_192, buffer, WriteDurability::Immediate)?;
//! handle.set_completion(CompletionPolicy::Paced(PollPace::Adaptive))?;
//! let mut buffer = handle.read(8_192, buffer)?;
//! assert_eq!(buffer.bytes_mut().map(|bytes| bytes[4_095]), Some(7));
//! # Ok::<(), IoError>(())
//! ```
//!
//! A read from a file through a cache, of any bytes:
//!
//! ```
//! use headwater::prelude::*;
//!
//! # let file = std::env::temp_dir().join(format!("headwater-doc-{}", std::process::id()));
//! # std::fs::write(&file, vec![5; 1 << 20]).expect("a file");
//! let mut device = Device::open(&format!("io-uring:{}", file.display()))?;
//! let handle = device.handle(32)?.build()?;
//! let namespace = device.namespace().clone();
//! let config = CacheConfig { pages: 64, ..CacheConfig::default() };
//! let mut cached = CachedHandle::new(handle, &namespace, config, &mut |bytes| device.buffer(bytes))?;
//! cached.submit(IoRequest::read(1_000, device.buffer(10)?), 7)?;
//! let done = loop {
//!     if let Some(done) = cached.poll()? {
//!         break done;
//!     }
//! };
//! assert_eq!((done.completion.token, done.completion.into_result().is_ok()), (7, true));
//! let mut again = [0; 10];
//! assert!(cached.read_hit(1_000, &mut again), "the page is cached now");
//! assert_eq!(again, [5; 10]);
//! # let _ = std::fs::remove_file(&file);
//! # Ok::<(), IoError>(())
//! ```
//!
//! An async read, on any executor:
//!
//! ```
//! use headwater::prelude::*;
//! # fn block_on<F: std::future::Future>(future: F) -> F::Output {
//! #     let mut future = std::pin::pin!(future);
//! #     let mut context = std::task::Context::from_waker(std::task::Waker::noop());
//! #     loop {
//! #         if let std::task::Poll::Ready(output) = future.as_mut().poll(&mut context) {
//! #             return output;
//! #         }
//! #         std::thread::yield_now();
//! #     }
//! # }
//!
//! let mut device = Device::open("model:16MiB?fixed=10us&keep=1")?;
//! let buffer = device.buffer(4_096)?;
//! let handle = AsyncHandle::over(device.handle(32)?.build()?)?;
//! let buffer = block_on(async { handle.read(8_192, buffer).await })?;
//! assert_eq!(buffer.bytes(), 4_096);
//! # Ok::<(), IoError>(())
//! ```
//!
//! A namespace of blocks:
//!
//! ```
//! use headwater::prelude::*;
//!
//! let mut device = Device::open("mem:64MiB")?;
//! let blocks = device.create_namespace(NamespaceSpec { block_bytes: 4_096, size: 1_000, ..NamespaceSpec::keys() })?;
//! device.select_namespace(blocks)?;
//! device.write(7, &[1; 8_192], WriteDurability::Immediate)?;
//! let mut back = [0; 4_096];
//! device.read(8, &mut back)?;
//! assert_eq!(back, [1; 4_096]);
//! # Ok::<(), IoError>(())
//! ```
#![forbid(unsafe_code)]

pub mod namespace_request;
pub mod prelude;

mod core_thread;
mod device;
mod in_process;
mod url;

pub use device::Device;
pub use headwater_dma as dma;
pub use headwater_host as host;
pub use headwater_io as io;
pub use headwater_io::namespace_request::{DurabilitySpec, NamespaceRequest, NamespaceSpec};
pub use headwater_io::{
    AsyncHandle, Buffer, ClientNamespace, Command, CompletedCommand, Completion, GetOptions, Handle, IoError,
    IoRequest, PoolSettings, Queue, RejectedCommand, RequestError, SharedQueue, StoreCondition, SubmitError,
    TransferData, ValueCaching, ValuePart, WriteDurability,
};
pub use headwater_nvme as nvme;
pub use headwater_nvme::spec::priority::QueuePriority;
pub use headwater_nvme::spec::status::Status;
pub use headwater_ssd as ssd;
pub use url::{DeviceLocation, DeviceUrl};
