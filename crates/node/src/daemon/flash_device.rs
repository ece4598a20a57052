//! Opens the device of a data directory: the device on a flash file.
//!
//! Input: a locked directory and a configuration. Output: a recovered device and its front ends. The size of an
//! existing flash file overrides the default; a configured capacity that differs from it is refused, never adjusted.

use crate::check::{CheckReport, check};
use crate::config::{ByteSize, FRAME_BYTES, NodeConfig, PasswordFile, default_capacity, read_password};
use crate::daemon::data_dir::DataDir;
use crate::daemon::node_gpus::NodeGpus;
use crate::daemon::node_mover::open_mover;
use crate::daemon::serve::{OpenedNode, RecoveryProgress, calibrate};
use headwater_dma::frame::FramePool;
use headwater_dma::pool::Pool;
use headwater_dma::pool::calibration::check_tiers_variable;
use headwater_frontend::attach::grant_file::GRANTS_FILE;
use headwater_frontend::attach::policy::GrantPolicy;
use headwater_frontend::attach::{AttachFrontEnd, AttachFrontEndIds, SsdExecutor};
use headwater_frontend::backup::BackupFrontEnd;
use headwater_frontend::front_end::FrontEnd;
use headwater_frontend::nvme_tcp::{NvmeTcpConfig, NvmeTcpFrontEnd};
use headwater_frontend::resp::{GivenPassword, KEPT_SETTINGS_FILE, RespConfig, RespFrontEnd};
use headwater_frontend::vfio_user::VfioUserFrontEnd;
use headwater_host::clock::Clock;
use headwater_host::width::{narrow, to_usize};
use headwater_io::nvme_tcp::key_file;
use headwater_ssd::command::FrontEndId;
use headwater_ssd::engine::administration::identity;
use headwater_ssd::engine::{
    COMMIT_GATHERING, DeviceConfig, OpeningLosses, OpeningReads, SsdDevice, StartTime,
};
use headwater_ssd::media::file::{FileMedia, FileOptions};
use headwater_ssd::media::{FlashGeometry, Media as _, PAGES_PER_BLOCK};

/// The device of a node.
pub type FileDevice = SsdDevice<FileMedia>;

/// Number of the RESP front end at the device.
const RESP_FRONT_END: FrontEndId = FrontEndId(1);
/// Numbers of the attach front end at the device.
const ATTACH_FRONT_ENDS: AttachFrontEndIds =
    AttachFrontEndIds { rings: FrontEndId(2), control: FrontEndId(3) };
/// Number of the vfio-user front end at the device.
const VFIO_USER_FRONT_END: FrontEndId = FrontEndId(4);
/// Number of the NVMe/TCP front end at the device.
const NVME_TCP_FRONT_END: FrontEndId = FrontEndId(5);

/// Opens the device of a data directory and creates its flash file if there is none.
///
/// # Errors
/// Names the fault of the directory, its flash file or the requested capacity.
pub fn open_device(
    directory: &DataDir,
    config: &NodeConfig,
    pool: &Pool,
    clock: Clock,
    progress: &mut dyn FnMut(RecoveryProgress),
) -> Result<FileDevice, String> {
    let media = open_media(directory, config)?;
    for damaged in media.bad_superblocks() {
        tracing::warn!("{}: superblock {damaged}; it was written again", media.path().display());
    }
    let device = device_config(config, pool);
    let start = StartTime { now: clock.now(), wall: clock.wall() };
    let device_identity = identity(media.uuid());
    let mut opened = SsdDevice::open(media, device, start, &mut |step| {
        progress(RecoveryProgress { stage: step.stage, done: step.done, total: step.total });
    })
    .map_err(|error| {
        format!("{}: the device cannot be opened: {}", directory.path().display(), error.reason)
    })?;
    opened.set_identity(device_identity);
    log_opening_reads(opened.opening_reads());
    log_opening_losses(opened.opening_losses());
    Ok(opened)
}

/// Logs the reads of an opening that failed: those that succeeded later, and the pages whose loss was accepted.
fn log_opening_reads(reads: &OpeningReads) {
    if reads.repeated > 0 {
        tracing::warn!(
            pages = reads.repeated,
            "pages of the flash were read only when repeated; check the disk"
        );
    }
    if let Some(report) = &reads.accepted {
        tracing::warn!(digest = %report.digest, "the loss was accepted: {report}");
        for page in &report.pages {
            tracing::info!("given up: {page}");
        }
    }
}

/// Logs what an opening found lost or damaged, and what a client gets for it.
fn log_opening_losses(losses: &OpeningLosses) {
    for run in losses.runs() {
        tracing::warn!(
            pages = run.pages, first_tick = run.first_tick, sequence_max = run.sequence_max, namespaces = ?run.namespaces,
            "pages of the log that were durable are lost"
        );
    }
    for doubt in &losses.doubtful {
        let namespace = doubt.namespace;
        match (losses.doubt, losses.accepted) {
            (Some(digest), _) => tracing::warn!(
                namespace,
                below = doubt.below,
                "a namespace is in doubt: its keys with a sequence below this one, and those without a record, are \
                 answered with errors until they are written or deleted; run `headwater device check` on the stopped \
                 node, and restore them from a copy, or accept the loss with --accept-loss={digest}"
            ),
            (None, Some(digest)) => tracing::warn!(
                namespace,
                below = doubt.below,
                "the loss {digest} was accepted: keys of this namespace that were written before this sequence may be \
                 answered with an older value, or as absent"
            ),
            (None, None) => {}
        }
    }
    if losses.damaged_copies() > 0 {
        tracing::warn!(
            cells = losses.damaged_cells.len(),
            checkpoint_pages = losses.damaged_checkpoint_pages,
            "commit cells or pages of the checkpoint are damaged; nothing is lost, because other copies hold the same"
        );
    }
}

/// Checks the flash file of a data directory; nothing in it changes.
///
/// # Errors
/// Says why the file cannot be read.
pub fn check_device(
    directory: &DataDir,
    config: &NodeConfig,
    clock: Clock,
    progress: &mut dyn FnMut(RecoveryProgress),
) -> Result<CheckReport, String> {
    let media = FileMedia::open_read_only(directory.path(), FileOptions::default());
    let media = media.map_err(|error| error.to_string())?;
    let start = StartTime { now: clock.now(), wall: clock.wall() };
    let pool = open_pool(config)?;
    let bad_superblocks = media.bad_superblocks().to_vec();
    let mut report = check(media, &device_config(config, &pool), start, &mut |stage, done, total| {
        progress(RecoveryProgress { stage, done, total });
    })
    .map_err(|reason| format!("{}: {reason}", directory.path().display()))?;
    report.add_superblocks(&bad_superblocks);
    Ok(report)
}

/// Opens the pool of a node, with room for all of device DRAM.
///
/// # Errors
/// Says why the memory cannot be allocated.
pub fn open_pool(config: &NodeConfig) -> Result<Pool, String> {
    open_pool_for(config, None)
}

/// Opens the pool of a node, whose memory GPUs can reach if there are some.
fn open_pool_for(config: &NodeConfig, gpus: Option<&NodeGpus>) -> Result<Pool, String> {
    // Device DRAM has no tiers, but an invalid setting is reported all the same.
    if let Err(error) = check_tiers_variable() {
        tracing::warn!("{error}");
    }
    let plain = FramePool::pool_config_for(frames_max(config));
    Pool::open(gpus.map_or(plain.clone(), |gpus| gpus.pool_config(plain)))
        .map_err(|error| format!("cannot open a pool for --memory {}: {error}", config.memory))
}

fn frames_max(config: &NodeConfig) -> usize {
    to_usize(config.memory.0 / FRAME_BYTES)
}

pub(super) fn device_config(config: &NodeConfig, pool: &Pool) -> DeviceConfig {
    DeviceConfig {
        durability: config.durability,
        frames_max: frames_max(config),
        pool: Some(pool.clone()),
        hash_seed: fastrand::u64(..),
        accept_loss: config.accept_loss,
        commit_gathering: COMMIT_GATHERING,
        ..DeviceConfig::default()
    }
}

/// Opens the device and its front ends for `serve`. The front ends listen first, so that a taken address is reported
/// before a long recovery.
///
/// # Errors
/// As [`open_device`], and when an address cannot be listened on.
pub fn open_node(
    config: &NodeConfig,
    directory: &DataDir,
    clock: Clock,
    progress: &mut dyn FnMut(RecoveryProgress),
) -> Result<OpenedNode<FileDevice>, String> {
    let [first, ..] = config.durability;
    let resp_config = RespConfig {
        password: config.resp_password.as_ref().map(given_password).transpose()?,
        kept_settings: Some(directory.path().join(KEPT_SETTINGS_FILE)),
        listen: config.resp.into_iter().collect(),
        unix_path: config.unix.clone(),
        durability: first,
        front_end: RESP_FRONT_END,
        seed: fastrand::u64(..),
        ..RespConfig::default()
    };
    let is_wanted = config.resp.is_some() || config.unix.is_some();
    let resp = is_wanted.then(|| RespFrontEnd::bind(resp_config)).transpose();
    let resp = resp.map_err(|error| error.to_string())?;
    let resp_address = resp.as_ref().and_then(RespFrontEnd::local_addr);
    let mut front_ends: Vec<Box<dyn FrontEnd<FileDevice>>> = Vec::new();
    if let Some(path) = &config.attach {
        let kept = directory.path().join(GRANTS_FILE);
        let policy =
            GrantPolicy::with_file(config.grants.iter().cloned(), kept).map_err(|error| error.to_string())?;
        let executor = SsdExecutor::new(ATTACH_FRONT_ENDS).map_err(|error| error.to_string())?;
        let attach = AttachFrontEnd::bind(path, policy, executor).map_err(|error| error.to_string())?;
        front_ends.push(Box::new(attach));
    }
    if let Some(front_end) = resp {
        front_ends.push(Box::new(front_end));
    }
    match BackupFrontEnd::bind(directory.path()) {
        Ok(front_end) => front_ends.push(Box::new(front_end)),
        Err(error) => {
            let path = directory.path().display();
            tracing::warn!(
                "{path}: no backup can be taken of this node: cannot listen on its socket: {error}"
            );
        }
    }
    if let Some(path) = &config.vfio_user {
        let front_end =
            VfioUserFrontEnd::bind(path, VFIO_USER_FRONT_END).map_err(|error| error.to_string())?;
        front_ends.push(Box::new(front_end));
    }
    let mut nvme_tcp = None;
    if let Some(listen) = config.nvme_tcp {
        let keys = config.nvme_tcp_psk.as_deref().map_or(Ok(Vec::new()), key_file::load);
        let keys = keys.map_err(|error| error.to_string())?;
        let front_end =
            NvmeTcpFrontEnd::bind(&NvmeTcpConfig { listen, front_end_id: NVME_TCP_FRONT_END, keys })
                .map_err(|error| error.to_string())?;
        nvme_tcp = Some(front_end.local_addr());
        front_ends.push(Box::new(front_end));
    }
    let calibration = calibrate(clock);
    let spin = calibration.spin_before_sleep;
    let gpus = NodeGpus::open(config.mover_gpu)?;
    let mover = open_mover(config, gpus.as_ref(), clock, &calibration)?;
    let pool = open_pool_for(config, gpus.as_ref())?;
    let ticker = pool.ticker().map_err(|error| format!("cannot start the pool's timer thread: {error}"))?;
    let mut device = open_device(directory, config, &pool, clock, progress)?;
    tracing::info!(ring = ?device.media().ring_kind(), mode = ?device.media().mode(), "flash is open");
    let capacity = flash_bytes(device.media().geometry().blocks);
    device.set_mover(mover);
    Ok(OpenedNode { device, front_ends, resp: resp_address, nvme_tcp, capacity, spin, pool, ticker })
}

fn given_password(file: &PasswordFile) -> Result<GivenPassword, String> {
    Ok(GivenPassword { text: read_password(&file.path)?, precedence: file.precedence })
}

fn open_media(directory: &DataDir, config: &NodeConfig) -> Result<FileMedia, String> {
    let options = FileOptions::default();
    if !FileMedia::exists(directory.path()) {
        let capacity = match config.capacity {
            Some(capacity) => capacity,
            None => default_capacity(directory.free().map_err(|error| error.to_string())?),
        };
        let geometry = FlashGeometry::with_blocks(blocks_in(capacity));
        let uuid = fastrand::u128(..).to_le_bytes();
        return FileMedia::create(directory.path(), geometry, uuid, options)
            .map_err(|error| error.to_string());
    }
    let media = FileMedia::open(directory.path(), options).map_err(|error| error.to_string())?;
    if media.version_1_session().is_some() {
        let path = directory.path().display();
        tracing::warn!(
            "{path}: the flash file has format version 1 and is only read, every write is refused; stop the node and run \
             `headwater device upgrade {path}` to write to it"
        );
    }
    let blocks = media.geometry().blocks;
    match config.capacity {
        Some(asked) if blocks_in(asked) != blocks => Err(format!(
            "{}: the capacity is {}, fixed when the directory was created, and {asked} was requested; leave --capacity \
             out, or copy the keys to a new directory with `kv dump` and `kv load`",
            directory.path().display(),
            flash_bytes(blocks)
        )),
        _ => Ok(media),
    }
}

/// Returns the number of whole blocks in `capacity`, which a configuration bounds, a multiple of the number of dies.
fn blocks_in(capacity: ByteSize) -> u32 {
    let dies = u64::from(FlashGeometry::with_blocks(0).dies());
    narrow(capacity.0 / block_bytes() / dies * dies)
}

fn flash_bytes(blocks: u32) -> ByteSize {
    ByteSize(u64::from(blocks) * block_bytes())
}

fn block_bytes() -> u64 {
    FRAME_BYTES * PAGES_PER_BLOCK as u64
}
