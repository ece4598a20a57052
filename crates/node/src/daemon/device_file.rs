//! The device on file media: from a data directory to a device that serves.
//!
//! In: a locked directory and a configuration. Out: an open, recovered device and its faces. The flash file's own size
//! wins over the default; a capacity that differs from it is refused, never adjusted.

use crate::check::{CheckReport, check};
use crate::config::{Bytes, Config, FRAME_BYTES, capacity_for};
use crate::daemon::data_dir::DataDir;
use crate::daemon::serve::{Opened, Recovery, calibrated_spin};
use headwater_dma::frame::FramePool;
use headwater_dma::pool::Pool;
use headwater_dma::pool::calibration::check_told;
use headwater_frontend::attach::grant_file::GRANTS_FILE;
use headwater_frontend::attach::policy::Policy;
use headwater_frontend::attach::{AttachFace, AttachFaces, ConvergedExecutor};
use headwater_frontend::front_end::Face;
use headwater_frontend::nvme_tcp::{NvmeTcpConfig, NvmeTcpFace};
use headwater_frontend::resp::{RespConfig, RespFace};
use headwater_frontend::vfio_user::VfioUserFace;
use headwater_host::clock::Clock;
use headwater_io::nvme_tcp::key_file;
use headwater_ssd::command::FaceId;
use headwater_ssd::engine::administration::identity;
use headwater_ssd::engine::{Device, DeviceConfig, Start};
use headwater_ssd::media::file::{FileMedia, FileOptions};
use headwater_ssd::media::{Geometry, Media as _, PAGES_PER_BLOCK};

/// The device of a node.
pub type FileDevice = Device<FileMedia>;

/// How the RESP face is known to the device.
const RESP_FACE: FaceId = FaceId(1);
/// How the attach face is.
const ATTACH_FACES: AttachFaces = AttachFaces { rings: FaceId(2), control: FaceId(3) };
/// How the vfio-user face is known to the device.
const VFIO_USER_FACE: FaceId = FaceId(4);
/// How the NVMe/TCP face is known to the device.
const NVME_TCP_FACE: FaceId = FaceId(5);

/// Opens the device of a data directory, making its flash when it has none.
///
/// # Errors
/// Says what is wrong with the directory, its flash or the capacity asked for.
pub fn open_device(
    directory: &DataDir,
    config: &Config,
    pool: &Pool,
    clock: Clock,
    progress: &mut dyn FnMut(Recovery),
) -> Result<FileDevice, String> {
    let media = open_media(directory, config)?;
    let device = device_config(config, pool);
    let start = Start { now: clock.now(), wall: clock.wall() };
    let who = identity(media.uuid());
    let mut opened = Device::open(media, device, start, &mut |step| {
        progress(Recovery { stage: step.stage, done: step.done, total: step.total });
    })
    .map_err(|error| {
        format!("{}: the device cannot be opened: {}", directory.path().display(), error.reason)
    })?;
    opened.set_identity(who);
    Ok(opened)
}

/// Looks at the flash of a data directory; nothing of it changes.
///
/// # Errors
/// Says why it cannot be read.
pub fn check_device(
    directory: &DataDir,
    config: &Config,
    clock: Clock,
    progress: &mut dyn FnMut(Recovery),
) -> Result<CheckReport, String> {
    let media = FileMedia::open_to_read(directory.path(), FileOptions::default());
    let media = media.map_err(|error| error.to_string())?;
    let start = Start { now: clock.now(), wall: clock.wall() };
    let pool = open_pool(config)?;
    check(media, &device_config(config, &pool), start, &mut |stage, done, total| {
        progress(Recovery { stage, done, total });
    })
    .map_err(|reason| format!("{}: {reason}", directory.path().display()))
}

/// The pool of a node: room for all of device DRAM.
///
/// # Errors
/// Says why there is no memory like that.
pub fn open_pool(config: &Config) -> Result<Pool, String> {
    // Device DRAM has no tiers, but a setting that is none is told by whatever reads settings.
    if let Err(error) = check_told() {
        tracing::warn!("{error}");
    }
    Pool::open(FramePool::room_for(frames_max(config)))
        .map_err(|error| format!("no pool for --memory {}: {error}", config.memory))
}

fn frames_max(config: &Config) -> usize {
    usize::try_from(config.memory.0 / FRAME_BYTES).unwrap_or(usize::MAX)
}

fn device_config(config: &Config, pool: &Pool) -> DeviceConfig {
    DeviceConfig {
        durability: config.durability,
        frames_max: frames_max(config),
        pool: Some(pool.clone()),
        hash_seed: fastrand::u64(..),
        ..DeviceConfig::default()
    }
}

/// Opens the device and its faces for `serve`. Faces listen first: a taken address is told before a long recovery.
///
/// # Errors
/// As [`open_device`], and when an address cannot be listened on.
pub fn open_node(
    config: &Config,
    directory: &DataDir,
    clock: Clock,
    progress: &mut dyn FnMut(Recovery),
) -> Result<Opened<FileDevice>, String> {
    let [first, ..] = config.durability;
    let face = RespFace::bind(RespConfig {
        listen: vec![config.resp],
        unix_path: config.unix.clone(),
        durability: first,
        face: RESP_FACE,
        seed: fastrand::u64(..),
        ..RespConfig::default()
    })
    .map_err(|error| error.to_string())?;
    let resp = face.local_addr().unwrap_or(config.resp);
    let mut faces: Vec<Box<dyn Face<FileDevice>>> = Vec::new();
    if let Some(path) = &config.attach {
        let kept = directory.path().join(GRANTS_FILE);
        let policy = Policy::kept(config.grants.iter().cloned(), kept).map_err(|error| error.to_string())?;
        let executor = ConvergedExecutor::new(ATTACH_FACES).map_err(|error| error.to_string())?;
        let attach = AttachFace::bind(path, policy, executor).map_err(|error| error.to_string())?;
        faces.push(Box::new(attach));
    }
    faces.push(Box::new(face));
    if let Some(path) = &config.vfio_user {
        let face = VfioUserFace::bind(path, VFIO_USER_FACE).map_err(|error| error.to_string())?;
        faces.push(Box::new(face));
    }
    let mut nvme_tcp = None;
    if let Some(listen) = config.nvme_tcp {
        let keys = config.nvme_tcp_psk.as_deref().map_or(Ok(Vec::new()), key_file::load);
        let keys = keys.map_err(|error| error.to_string())?;
        let face = NvmeTcpFace::bind(&NvmeTcpConfig { listen, face: NVME_TCP_FACE, keys })
            .map_err(|error| error.to_string())?;
        nvme_tcp = Some(face.local_addr());
        faces.push(Box::new(face));
    }
    let pool = open_pool(config)?;
    let ticker = pool.ticker().map_err(|error| format!("no thread for the pool's clock: {error}"))?;
    let device = open_device(directory, config, &pool, clock, progress)?;
    tracing::info!(ring = ?device.media().ring_kind(), mode = ?device.media().mode(), "flash is open");
    let capacity = flash_bytes(device.media().geometry().blocks);
    let spin = calibrated_spin(clock);
    Ok(Opened { device, faces, resp: Some(resp), nvme_tcp, capacity, spin, pool, ticker })
}

fn open_media(directory: &DataDir, config: &Config) -> Result<FileMedia, String> {
    let options = FileOptions::default();
    if !FileMedia::exists(directory.path()) {
        let capacity = match config.capacity {
            Some(capacity) => capacity,
            None => capacity_for(directory.free().map_err(|error| error.to_string())?),
        };
        let geometry = Geometry::with_blocks(blocks_in(capacity));
        let uuid = fastrand::u128(..).to_le_bytes();
        return FileMedia::create(directory.path(), geometry, uuid, options)
            .map_err(|error| error.to_string());
    }
    let media = FileMedia::open(directory.path(), options).map_err(|error| error.to_string())?;
    let blocks = media.geometry().blocks;
    match config.capacity {
        Some(asked) if blocks_in(asked) != blocks => Err(format!(
            "{}: its capacity is {}, fixed when it was made, and {asked} was asked for; leave --capacity out, or \
             `kv dump` into a new directory of that capacity",
            directory.path().display(),
            flash_bytes(blocks)
        )),
        _ => Ok(media),
    }
}

/// Whole blocks in so many bytes of flash, a multiple of the dies.
fn blocks_in(capacity: Bytes) -> u32 {
    let dies = u64::from(Geometry::with_blocks(0).dies());
    let blocks = capacity.0 / block_bytes() / dies * dies;
    u32::try_from(blocks).unwrap_or(u32::MAX)
}

fn flash_bytes(blocks: u32) -> Bytes {
    Bytes(u64::from(blocks) * block_bytes())
}

fn block_bytes() -> u64 {
    FRAME_BYTES * u64::try_from(PAGES_PER_BLOCK).unwrap_or(64)
}
