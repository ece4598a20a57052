//! The table of connections.
//!
//! In: sockets. Out: a place for each, its [`ClientIndex`]. A connection is taken out of its place while it is worked on, so that
//! commands about other clients can look at the table.

use super::connection::Connection;
use super::limits::CLIENTS_CEILING;
use super::locks::ClientIndex;

/// All connections, by place.
#[derive(Debug, Default)]
pub(crate) struct Clients {
    places: Vec<Option<Box<Connection>>>,
    free: Vec<u16>,
    open: usize,
}

impl Clients {
    /// Places taken, those being closed included.
    pub(crate) fn len(&self) -> usize {
        self.open
    }

    /// A free place, or `None` when there are as many as a token can name.
    pub(crate) fn vacancy(&mut self) -> Option<ClientIndex> {
        if let Some(place) = self.free.pop() {
            return Some(ClientIndex(place));
        }
        let place = u16::try_from(self.places.len()).ok()?;
        if usize::from(place) >= CLIENTS_CEILING {
            return None;
        }
        self.places.push(None);
        Some(ClientIndex(place))
    }

    /// Gives a place back that was never filled.
    pub(crate) fn give_up(&mut self, index: ClientIndex) {
        self.free.push(index.0);
    }

    /// Fills a new place.
    pub(crate) fn insert(&mut self, connection: Box<Connection>) {
        self.open += 1;
        self.put_back(connection);
    }

    /// Takes a connection out to work on it.
    #[inline]
    pub(crate) fn take(&mut self, index: ClientIndex) -> Option<Box<Connection>> {
        self.places.get_mut(usize::from(index.0))?.take()
    }

    /// Puts a connection back that was taken.
    #[inline]
    pub(crate) fn put_back(&mut self, connection: Box<Connection>) {
        let place = usize::from(connection.index.0);
        self.places[place] = Some(connection);
    }

    /// Forgets a connection that was taken.
    pub(crate) fn forget(&mut self, index: ClientIndex) {
        self.open -= 1;
        self.free.push(index.0);
    }

    /// A connection where it is.
    #[inline]
    pub(crate) fn get_mut(&mut self, index: ClientIndex) -> Option<&mut Connection> {
        self.places.get_mut(usize::from(index.0))?.as_deref_mut()
    }

    /// Everyone who is not being worked on.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Connection> {
        self.places.iter().flatten().map(AsRef::as_ref)
    }

    /// Everyone who is not being worked on.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Connection> {
        self.places.iter_mut().flatten().map(AsMut::as_mut)
    }
}
