//! Connect (NVMe Base 2.0 section 6.3), which makes a connection a queue.
//!
//! Input: the entry and its 1,024 bytes of data. Output: a [`JoinedQueue`] queue, or a [`ConnectRefusal`] that names the invalid
//! parameter.

use super::{Association, AssociationTable, ConnectionId, ControllerId, QueueRole};
use crate::controller::admin::ControllerKind;
use crate::spec::command::SubmissionEntry;
use crate::spec::fabrics::{
    CONTROLLER_DYNAMIC, ConnectData, ConnectFields, DISCOVERY_NAME, InvalidParameter, connect_status,
    parse_name,
};
use crate::spec::status::Status;
use crate::tcp::target::FlowControl;
use headwater_host::clock::Nanos;
use std::collections::BTreeMap;
use zerocopy::FromBytes;

/// The offsets of parameters that can be refused.
mod parameter_offset {
    use super::InvalidParameter;

    pub(super) const QUEUE: InvalidParameter = InvalidParameter::Entry(42);
    pub(super) const SIZE: InvalidParameter = InvalidParameter::Entry(44);
    pub(super) const HOST_IDENTIFIER: InvalidParameter = InvalidParameter::Data(0);
    pub(super) const CONTROLLER: InvalidParameter = InvalidParameter::Data(16);
    pub(super) const SUBSYSTEM_NAME: InvalidParameter = InvalidParameter::Data(256);
    pub(super) const HOST_NAME: InvalidParameter = InvalidParameter::Data(512);
}

/// The maximum bytes of a qualified name (Base 2.0 section 4.5).
const NAME_BYTES_MAX: usize = 223;

/// A connection that became a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JoinedQueue {
    /// The controller of the queue; dword 0 of the completion.
    pub controller: ControllerId,
    /// The role of the queue.
    pub role: QueueRole,
    /// The number of entries of the queue.
    pub entries: u16,
    /// The flow control mode: whether completions carry the submission queue head.
    pub flow: FlowControl,
}

/// The completion of a refused Connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectRefusal {
    /// Dword 0.
    pub result: u32,
    /// The status.
    pub status: Status,
}

impl From<InvalidParameter> for ConnectRefusal {
    fn from(parameter: InvalidParameter) -> Self {
        Self { result: parameter.to_result(), status: connect_status::INVALID_PARAMETERS }
    }
}

impl From<Status> for ConnectRefusal {
    fn from(status: Status) -> Self {
        Self { result: 0, status }
    }
}

/// The parameters of a Connect.
struct ConnectRequest<'a> {
    fields: ConnectFields,
    host_name: &'a str,
    host_identifier: [u8; 16],
    controller: u16,
    connection: ConnectionId,
}

impl AssociationTable {
    /// Executes a Connect that arrived on `connection`, which is not a queue yet.
    ///
    /// # Errors
    /// [`ConnectRefusal`]; the state is unchanged.
    pub fn connect(
        &mut self,
        entry: &SubmissionEntry,
        data: &[u8],
        connection: ConnectionId,
        now: Nanos,
    ) -> Result<JoinedQueue, ConnectRefusal> {
        let fields = ConnectFields::from_entry(entry);
        if fields.format != 0 {
            return Err(connect_status::INCOMPATIBLE_FORMAT.into());
        }
        let (data, _) = ConnectData::ref_from_prefix(data)
            .map_err(|_| ConnectRefusal::from(Status::DATA_SGL_LENGTH_INVALID))?;
        let subsystem = parse_name(&data.subsystem_name).ok_or(parameter_offset::SUBSYSTEM_NAME)?;
        let kind = match subsystem {
            DISCOVERY_NAME => ControllerKind::Discovery,
            name if !name.is_empty() && name == self.config.subsystem_name => ControllerKind::Io,
            _ => return Err(parameter_offset::SUBSYSTEM_NAME.into()),
        };
        let host_name = parse_name(&data.host_name).filter(|name| is_host_name(name));
        let host_name = host_name.ok_or(parameter_offset::HOST_NAME)?;
        if fields.size == 0 || fields.size >= self.config.queue_entries_max {
            return Err(parameter_offset::SIZE.into());
        }
        let request = ConnectRequest {
            fields,
            host_name,
            host_identifier: data.host_identifier,
            controller: data.controller.get(),
            connection,
        };
        let (controller, role) = match fields.queue {
            0 => (self.join_admin(kind, &request, now)?, QueueRole::Admin),
            _ => (self.join_io(&request)?, QueueRole::Io),
        };
        let flow = match fields.attributes & ConnectFields::FLOW_CONTROL_DISABLED {
            0 => FlowControl::Enabled,
            _ => FlowControl::Disabled,
        };
        Ok(JoinedQueue { controller, role, entries: fields.size + 1, flow })
    }

    fn join_admin(
        &mut self,
        kind: ControllerKind,
        request: &ConnectRequest<'_>,
        now: Nanos,
    ) -> Result<ControllerId, ConnectRefusal> {
        // The dynamic model: the subsystem chooses the controller (Base 2.0 section 3.1.1).
        if request.controller != CONTROLLER_DYNAMIC {
            return Err(parameter_offset::CONTROLLER.into());
        }
        let id = self.next_free_id().ok_or(connect_status::CONTROLLER_BUSY)?;
        let mut controller = self.create_controller(id, kind);
        controller.set_host_identifier(request.host_identifier);
        let keep_alive_ms = match (kind, request.fields.keep_alive_ms) {
            // A host that read the discovery log and disappeared must not keep its controller for ever.
            (ControllerKind::Discovery, 0) => self.config.discovery_keep_alive_ms,
            (_, keep_alive_ms) => keep_alive_ms,
        };
        controller.set_keep_alive(keep_alive_ms, now);
        let association = Association {
            controller,
            host_name: request.host_name.to_owned(),
            host_identifier: request.host_identifier,
            admin: request.connection,
            io: BTreeMap::new(),
            polled_generation: u64::MAX,
        };
        self.by_controller.insert(id, association);
        Ok(id)
    }

    fn join_io(&mut self, request: &ConnectRequest<'_>) -> Result<ControllerId, ConnectRefusal> {
        let id = ControllerId(request.controller);
        let association = self.by_controller.get_mut(&id).ok_or(parameter_offset::CONTROLLER)?;
        if association.host_name != request.host_name {
            return Err(parameter_offset::HOST_NAME.into());
        }
        if association.host_identifier != request.host_identifier {
            return Err(parameter_offset::HOST_IDENTIFIER.into());
        }
        if request.fields.queue > association.controller.config().io_queues_max {
            return Err(parameter_offset::QUEUE.into());
        }
        if !association.controller.is_ready() || association.io.contains_key(&request.fields.queue) {
            return Err(Status::COMMAND_SEQUENCE_ERROR.into());
        }
        association.io.insert(request.fields.queue, request.connection);
        Ok(id)
    }
}

/// Returns true for the qualified name of a host, or for none: SPDK's `perf` sends none, and only a key for TLS proves a
/// name.
fn is_host_name(name: &str) -> bool {
    name.is_empty() || (name.starts_with("nqn.") && name.len() <= NAME_BYTES_MAX)
}
