//! Administration over the attach socket: grants, clients, namespaces.
//!
//! Input: requests of the daemon's own user or root. Output: changes that apply from the next command of every client
//! on, and replies.

use super::AttachFrontEnd;
use super::client::{AttachedClient, ClientKey, DeferredReply};
use super::executor::EntryExecutor;
use headwater_io::attach::admin::{AdminAnswer, AdminRequest};
use headwater_io::namespace_request::NamespaceRequest;

impl<E: EntryExecutor> AttachFrontEnd<E> {
    /// Executes an administrator's request. Returns `None` when the reply follows later.
    pub(super) fn administer(
        &mut self,
        device: &mut E::Device,
        key: ClientKey,
        request: AdminRequest,
    ) -> Result<Option<AdminAnswer>, String> {
        let peer = self.clients.get(&key).ok_or("the client is gone")?.peer;
        if !self.policy.is_administrator(peer) {
            return Err("administration is for the daemon's own user and root only".to_owned());
        }
        let answer = match request {
            AdminRequest::List => AdminAnswer::List {
                grants: self.policy.grants().cloned().collect(),
                clients: self.clients.values().map(AttachedClient::client_info).collect(),
            },
            AdminRequest::Grant(grant) => {
                self.policy.grant(grant)?;
                AdminAnswer::Reached(self.apply_policy())
            }
            AdminRequest::Revoke(who) => {
                self.policy.revoke(who)?;
                AdminAnswer::Reached(self.apply_policy())
            }
            AdminRequest::Quota { who, queues, memory } => {
                self.policy.limit(who, queues, memory)?;
                AdminAnswer::Reached(self.apply_policy())
            }
            AdminRequest::Namespaces => AdminAnswer::Namespaces(self.executor.namespace_table(device)),
            AdminRequest::Namespace { id, request: change } => {
                self.change_namespace(device, key, id, &change)?;
                return Ok(None);
            }
        };
        Ok(Some(answer))
    }

    fn change_namespace(
        &mut self,
        device: &mut E::Device,
        key: ClientKey,
        id: u8,
        change: &NamespaceRequest,
    ) -> Result<(), String> {
        let token = self.executor.begin_change(device, id, change)?;
        if let Some(client) = self.clients.get_mut(&key) {
            let id = if matches!(change, NamespaceRequest::Create(_)) { 0 } else { id };
            client.pending_reply = Some(DeferredReply::Namespace { token, id });
        }
        Ok(())
    }
}
