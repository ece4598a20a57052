//! Administration over the attach socket: grants, clients, namespaces.
//!
//! In: wishes of the daemon's own user or root. Out: changes that hold for the next command of every client, and answers.

use super::AttachFace;
use super::client::{AttachedClient, ClientKey, Waiting};
use super::executor::Executor;
use headwater_io::attach::admin::{AdminAnswer, AdminRequest, NamespaceWish};

impl<E: Executor> AttachFace<E> {
    /// Does what an administrator asks. `None` when the answer comes later.
    pub(super) fn administer(
        &mut self,
        device: &mut E::Device,
        key: ClientKey,
        request: AdminRequest,
    ) -> Result<Option<AdminAnswer>, String> {
        let person = self.clients.get(&key).ok_or("the client is gone")?.peer;
        if !self.policy.is_administrator(person) {
            return Err("only the daemon's own user and root administer it".to_owned());
        }
        let answer = match request {
            AdminRequest::List => AdminAnswer::List {
                grants: self.policy.grants().cloned().collect(),
                clients: self.clients.values().map(AttachedClient::facts).collect(),
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
            AdminRequest::Namespaces => AdminAnswer::Namespaces(self.executor.table(device)),
            AdminRequest::Namespace { id, wish } => {
                self.change_namespace(device, key, id, &wish)?;
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
        wish: &NamespaceWish,
    ) -> Result<(), String> {
        let token = self.executor.change(device, id, wish)?;
        if let Some(client) = self.clients.get_mut(&key) {
            let id = if matches!(wish, NamespaceWish::Create(_)) { 0 } else { id };
            client.waiting = Some(Waiting::Namespace { token, id });
        }
        Ok(())
    }
}
