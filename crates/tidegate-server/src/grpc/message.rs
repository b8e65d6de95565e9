//! # Messages in a body
//!
//! Each has five bytes before it: whether it is compressed, and how long it is. They arrive in pieces of any size;
//! mostly the only message is the only piece, and then nothing is copied.

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::body::Incoming;

use super::status::{Code, Status};
use super::wire::Message;
use crate::serve::unfinished::Share;

/// The longest message, in bytes.
pub(crate) const LONGEST: usize = 64 << 10;
const HEAD: usize = 5;

/// The messages of a request.
#[derive(Debug)]
pub(crate) struct Messages {
    body: Incoming,
    buffer: BytesMut,
    /// Of the memory for unfinished requests.
    share: Share,
}

impl Messages {
    pub(crate) fn of(body: Incoming, share: Share) -> Self {
        Messages { body, buffer: BytesMut::new(), share }
    }

    /// The only one there is.
    pub(crate) async fn only<M: Message>(mut self) -> Result<M, Status> {
        let Some(message) = self.next().await? else {
            return Err(Status::new(Code::Internal, "the call has no message; send one"));
        };
        match self.next().await? {
            None => Ok(message),
            Some::<M>(_) => Err(Status::new(Code::Internal, "the call has more than one message; send one")),
        }
    }

    /// The next one; `None` if that was all.
    pub(crate) async fn next<M: Message>(&mut self) -> Result<Option<M>, Status> {
        let Some(bytes) = self.bytes().await? else { return Ok(None) };
        let malformed = |why| Status::new(Code::InvalidArgument, format!("this is no such message: {why}"));
        M::read(&bytes).map(Some).map_err(malformed)
    }

    async fn bytes(&mut self) -> Result<Option<Bytes>, Status> {
        loop {
            if let Some(length) = length(&self.buffer)?
                && self.buffer.len() >= HEAD + length
            {
                return Ok(Some(self.buffer.split_to(HEAD + length).freeze().slice(HEAD..)));
            }
            let Some(piece) = self.piece().await? else { return self.end() };
            if self.buffer.is_empty() && length(&piece)?.is_some_and(|length| piece.len() == HEAD + length) {
                return Ok(Some(piece.slice(HEAD..)));
            }
            self.buffer.extend_from_slice(&piece);
            if !self.share.resize(self.buffer.capacity()) {
                let sentence = "too many unfinished requests; send the whole message at once, or retry later";
                return Err(Status::new(Code::ResourceExhausted, sentence));
            }
        }
    }

    async fn piece(&mut self) -> Result<Option<Bytes>, Status> {
        while let Some(frame) = self.body.frame().await {
            let frame = frame.map_err(|error| {
                Status::new(Code::Unavailable, format!("the call ended early ({error}); send all of it"))
            })?;
            if let Ok(data) = frame.into_data() {
                return Ok(Some(data));
            }
        }
        Ok(None)
    }

    fn end(&self) -> Result<Option<Bytes>, Status> {
        match self.buffer.len() {
            0 => Ok(None),
            left => {
                let sentence = format!("the call ends {left} bytes into a message; send all of it");
                Err(Status::new(Code::Internal, sentence))
            }
        }
    }
}

/// How long the message is that begins here, if that is known yet.
fn length(bytes: &[u8]) -> Result<Option<usize>, Status> {
    let Some([flag, length @ ..]) = bytes.first_chunk::<HEAD>() else { return Ok(None) };
    if *flag != 0 {
        let sentence = "the message is compressed, which is not understood here; send it as it is";
        return Err(Status::new(Code::Unimplemented, sentence));
    }
    let length = u32::from_be_bytes(*length);
    usize::try_from(length).ok().filter(|length| *length <= LONGEST).map(Some).ok_or_else(|| {
        let sentence = format!("a message of {length} bytes is too long; send at most {LONGEST}");
        Status::new(Code::ResourceExhausted, sentence)
    })
}

/// A message with its head, as it is sent.
pub(crate) fn framed(message: &impl Message) -> Bytes {
    let mut bytes = Vec::with_capacity(128);
    bytes.extend_from_slice(&[0; HEAD]);
    message.write(&mut bytes);
    let length = u32::try_from(bytes.len() - HEAD).unwrap_or(u32::MAX); // ours are some hundreds of bytes
    bytes[1..HEAD].copy_from_slice(&length.to_be_bytes());
    Bytes::from(bytes)
}
