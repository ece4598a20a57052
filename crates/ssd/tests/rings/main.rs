//! What the ring face promises to clients in this process, good and bad ones.

mod blocks;
mod commands;
mod desk;
mod guest;
mod hostile;
mod life;
mod raw_host;
