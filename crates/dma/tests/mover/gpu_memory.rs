//! The memory and the driver of a GPU channel: what is missing, what is refused, what is registered and how long.

use super::gpu::{BYTES, GpuMover, LONG, SLOT_BYTES, bytes_of};
use super::noise;
use super::software_gpu::SoftwareGpu;
use headwater_dma::mover::{GpuChannel, GpuConfig, MemoryPlace, MoveJob, MoveStep};
use headwater_host::gpu::{GpuDriver, GpuEngineConfig, HostRegistrations};
use headwater_host::shared_memory::SharedMemory;

#[test]
fn driver_that_lacks_a_function_or_a_gpu_is_an_error_that_says_what_to_do() {
    let refused = |library: SoftwareGpu| GpuDriver::open(&library.library()).unwrap_err().to_string();
    for function in ["cuInit", "cuMemcpyDtoHAsync_v2", "cuGetErrorName"] {
        let error = refused(SoftwareGpu::without_function(function));
        assert!(error.contains(&format!("no function {function}: install a newer driver")), "{error}");
    }
    for (faults, part) in [
        ("devices 0", "the driver knows no GPU"),
        ("devices -1", "cuInit failed: CUDA_ERROR_NO_DEVICE (error 100)"),
        ("fail cuInit 0 999", "cuInit failed: CUDA_ERROR_UNKNOWN (error 999)"),
        ("fail cuDriverGetVersion 0 3", "cuDriverGetVersion failed: an error without a name (error 3)"),
        ("fail cuDeviceGetCount 0 1", "cuDeviceGetCount failed"),
        ("fail cuDeviceGet 0 1", "cuDeviceGet failed"),
        ("fail cuDeviceGetName 0 1", "cuDeviceGetName failed"),
    ] {
        let error = refused(SoftwareGpu::with_faults(faults));
        assert!(error.contains(part), "{faults}: {error}");
    }
    let library = SoftwareGpu::with_faults("devices 3\nfail cuDeviceGetPCIBusId 1 1");
    let driver = GpuDriver::open(&library.library()).unwrap();
    let found: Vec<_> = driver.gpus().iter().map(|gpu| (gpu.name.as_str(), gpu.bus_id.as_str())).collect();
    let named = ["software GPU 0", "software GPU 1", "software GPU 2"];
    assert_eq!(found, [(named[0], "FFFF:07:00.0"), (named[1], ""), (named[2], "FFFF:09:00.0")]);
    assert_eq!((driver.version(), driver.gpus()[2].number), ((12, 4), 2));
    assert!(driver.gpu(3).unwrap_err().to_string().contains("there is no GPU 3: the driver knows 3"));
}

#[test]
fn engine_that_cannot_be_opened_leaves_nothing_behind() {
    for faults in [
        "fail cuCtxCreate 0 2",
        "fail cuMemAlloc 0 2",
        "fail cuStreamCreate 0 2",
        "fail cuStreamCreate 2 2",
        "fail cuCtxPushCurrent 0 201",
    ] {
        let library = SoftwareGpu::with_faults(faults);
        let driver = GpuDriver::open(&library.library()).unwrap();
        let registrations = HostRegistrations::open(&driver).unwrap();
        let open = |config| GpuChannel::open(&driver, 0, registrations.clone(), config);
        let error = open(GpuConfig::default()).unwrap_err().to_string();
        let call = faults.split(' ').nth(1).unwrap();
        assert!(error.contains(call) && error.contains("nvidia-smi"), "{faults}: {error}");
        let contexts = library.log().iter().filter(|line| line.starts_with("destroyed")).count();
        assert_eq!(contexts, usize::from(call != "cuCtxCreate"), "{faults}");
        open(GpuConfig::default()).unwrap();
        for engine in [
            GpuEngineConfig { slots: 0, ..GpuEngineConfig::default() },
            GpuEngineConfig { slot_bytes: 63, ..GpuEngineConfig::default() },
            GpuEngineConfig { depth: usize::MAX, ..GpuEngineConfig::default() },
        ] {
            let error = open(GpuConfig { engine, ..GpuConfig::default() }).unwrap_err();
            assert!(error.to_string().contains("is not between"), "{error}");
        }
        drop(registrations);
        assert_eq!(library.misuses(), [""; 0], "{faults}");
    }
    let library = SoftwareGpu::with_faults("fail cuDevicePrimaryCtxRetain 0 2");
    let driver = GpuDriver::open(&library.library()).unwrap();
    let error = HostRegistrations::open(&driver).unwrap_err().to_string();
    assert!(error.contains("cuDevicePrimaryCtxRetain"), "{error}");
}

#[test]
fn job_in_memory_that_is_not_registered_is_not_offered_and_is_counted() {
    let mut gpu = GpuMover::new("", LONG);
    let content = noise(BYTES, &mut fastrand::Rng::with_seed(1));
    let copy = MoveStep::Copy { from: MemoryPlace::new(0, 0).range(BYTES), to: MemoryPlace::new(1, 0) };
    for registered in 0..2 {
        let mut job = MoveJob::new();
        for memory in 0..2 {
            if memory == registered {
                job.add_memory(gpu.buffer(&content));
            } else {
                job.add_memory(content.clone());
            }
        }
        job.add_step(copy);
        let job = gpu.run(job);
        assert!(job.into_memories().into_iter().all(|memory| bytes_of(memory) == content));
    }
    let counters = gpu.counters.read();
    assert_eq!((counters.unregistered_jobs, counters.rounds), (2, 0), "{counters:?}");
    assert_eq!(gpu.mover.channel_counters().unreachable, 2);
    // A range in the middle of a job that is not registered the CPU does, in its place.
    let mut job = MoveJob::new();
    job.add_memory(gpu.buffer(&content));
    job.add_memory(vec![0; BYTES]);
    job.add_memory(gpu.buffer(&vec![0; BYTES]));
    job.add_step(MoveStep::Fill { to: MemoryPlace::new(0, 0).range(1_000), value: 9 });
    job.add_step(copy);
    let from = MemoryPlace::new(1, 0).range(BYTES);
    job.add_step(MoveStep::Copy { from, to: MemoryPlace::new(2, 0) });
    job.add_step(MoveStep::Fill { to: MemoryPlace::new(2, 8_000).range(100), value: 8 });
    let mut expected = content;
    expected[..1_000].fill(9);
    let memories = gpu.run(job).into_memories();
    let [first, second, third] = <[_; 3]>::try_from(memories).unwrap().map(bytes_of);
    assert!(first == expected && second == expected);
    expected[8_000..8_100].fill(8);
    assert!(third == expected);
    let counters = gpu.counters.read();
    assert_eq!((counters.cpu_bytes, counters.unregistered_jobs), (2 * BYTES as u64, 2), "{counters:?}");
    assert_eq!(gpu.misuses(), [""; 0]);
}

/// Returns a job of one copy between two regions.
fn copy_between(one: &SharedMemory, other: &SharedMemory) -> MoveJob {
    let mut job = MoveJob::new();
    job.add_memory(one.clone());
    job.add_memory(other.clone());
    let from = MemoryPlace::new(0, 0).range(one.bytes());
    job.add_step(MoveStep::Copy { from, to: MemoryPlace::new(1, 0) });
    job
}

#[test]
fn shared_regions_are_registered_behind_their_first_job_and_unregistered_behind_their_last_handle() {
    let mut gpu = GpuMover::new("slow_register 5", LONG);
    let regions = [(); 2].map(|()| SharedMemory::anonymous(5 * SLOT_BYTES).unwrap());
    let content = noise(5 * SLOT_BYTES, &mut fastrand::Rng::with_seed(5));
    regions[0].copy_out(0, &content).unwrap();
    let mut jobs = 0;
    while gpu.counters.read().rounds == 0 {
        drop(gpu.run(copy_between(&regions[0], &regions[1])));
        jobs += 1;
    }
    assert!(jobs > 1, "the first job finds nothing registered");
    assert_eq!(gpu.counters.read().unregistered_jobs, jobs - 1);
    let counters = gpu.registrations.counters();
    assert_eq!((counters.registered_bytes, counters.refused), (10 * SLOT_BYTES as u64, 0), "{counters:?}");
    regions[1].copy_out(0, &[0; SLOT_BYTES]).unwrap();
    drop(gpu.run(copy_between(&regions[0], &regions[1])));
    assert!(bytes_of(regions[1].clone().into()) == content);
    gpu.registrations.release_unused();
    assert_eq!(gpu.registrations.counters().unregistered, 0, "the regions are in use");
    drop(regions);
    gpu.registrations.release_unused();
    let counters = gpu.registrations.counters();
    // The thread may have been first with one of them.
    assert_eq!((counters.unregistered, counters.registered_bytes), (2, 0), "{counters:?}");
    assert_eq!(gpu.misuses(), [""; 0]);
}

#[test]
fn region_that_the_driver_refuses_is_asked_for_once_and_its_jobs_go_to_the_cpu() {
    let mut gpu =
        GpuMover::new("slow_register 5\nfail cuMemHostRegister 0 2\nfail cuMemHostRegister 1 1", LONG);
    let regions = [(); 2].map(|()| SharedMemory::anonymous(SLOT_BYTES).unwrap());
    let content = noise(SLOT_BYTES, &mut fastrand::Rng::with_seed(6));
    regions[0].copy_out(0, &content).unwrap();
    while gpu.registrations.counters().refused < 2 {
        assert_eq!(gpu.registrations.counters().registered, 0);
        drop(gpu.run(copy_between(&regions[0], &regions[1])));
    }
    for _ in 0..10 {
        drop(gpu.run(copy_between(&regions[0], &regions[1])));
    }
    assert!(bytes_of(regions[1].clone().into()) == content);
    let counters = gpu.registrations.counters();
    assert_eq!((counters.refused, counters.registered), (2, 0), "{counters:?}");
    assert_eq!(gpu.counters.read().rounds, 0);
}

#[test]
fn pool_registers_its_chunks_once_and_says_when_the_driver_refuses() {
    let gpu = GpuMover::new("", LONG);
    let buffers = [(); 3].map(|()| gpu.pool.buffer(10_000).unwrap());
    let lookup = gpu.registrations.lookup();
    assert!(buffers.iter().all(|buffer| lookup.bytes_from(buffer.as_ptr().addr()) >= 10_000));
    drop(lookup);
    let counters = gpu.registrations.counters();
    assert!(counters.registered <= 2 && counters.registered_bytes >= 30_000, "{counters:?}");
    // The pool tries smaller chunks before it gives up.
    let refusals: Vec<String> = (0..32).map(|nth| format!("fail cuMemHostRegister {nth} 2")).collect();
    let gpu = GpuMover::new(&refusals.join("\n"), LONG);
    let error = gpu.pool.buffer(10_000).unwrap_err();
    assert!(error.to_string().contains("driver of the GPU refused"), "{error}");
    let gpu = GpuMover::new("fail cuMemHostRegister 0 2", LONG);
    gpu.pool.buffer(10_000).unwrap();
}
