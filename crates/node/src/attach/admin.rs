//! Administration over the attach socket: grants, clients, namespaces.
//!
//! In: wishes of the daemon's own user or root. Out: changes that hold for the next command of every client, and answers.

use super::AttachFace;
use super::client::{AttachedClient, ClientKey, Waiting};
use headwater::namespace_wish::{change_of, table};
use headwater_converged::command::Command;
use headwater_converged::device::Device;
use headwater_converged::media::Media;
use headwater_io::attach::admin::{AdminAnswer, AdminRequest, NamespaceWish};

impl AttachFace {
    /// Does what an administrator asks. `None` when the answer comes later.
    pub(super) fn administer<M: Media>(
        &mut self,
        device: &mut Device<M>,
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
            AdminRequest::Namespaces => AdminAnswer::Namespaces(table(device)),
            AdminRequest::Namespace { id, wish } => {
                self.change_namespace(device, key, id, &wish)?;
                return Ok(None);
            }
        };
        Ok(Some(answer))
    }

    fn change_namespace<M: Media>(
        &mut self,
        device: &mut Device<M>,
        key: ClientKey,
        id: u8,
        wish: &NamespaceWish,
    ) -> Result<(), String> {
        let (namespace, change) = change_of(id, wish)?;
        let token = self.next_token;
        self.next_token += 1;
        device
            .submit(self.control, namespace, token, Command::Namespace(change))
            .map_err(|error| error.to_string())?;
        if let Some(client) = self.clients.get_mut(&key) {
            let id = if matches!(wish, NamespaceWish::Create(_)) { 0 } else { id };
            client.waiting = Some(Waiting::Namespace { token, id });
        }
        Ok(())
    }
}
