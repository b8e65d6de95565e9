//! # The script on a clock that the test sets
//!
//! The code below goes before the script's text and wraps `redis.call`: `TIME` is read from a
//! key, and the expiry of a value is recorded instead of being passed to the server, which has another
//! clock. With `test:forgets` set, values expire by the test's clock, when they are read.

use redis::{Connection, Pipeline};
use tidegate_core::Micros;

use crate::server::{Kind, Server};
use crate::wire::{Reply, RuleArgs, RuleReply, call, call_at, script};

const CLOCK: &str = r"
local redis = (function(real)
  local function now()
    return tonumber(real.call('GET', 'test:now'))
  end
  local function forget(keys)
    for _, key in ipairs(keys) do
      local idle_at = real.call('HGET', 'test:expiries', key)
      if idle_at and tonumber(idle_at) * 1000 <= now() then
        real.call('DEL', key)
        real.call('HDEL', 'test:expiries', key)
      end
    end
  end
  local function call(command, ...)
    local arguments = { ... }
    if command == 'TIME' then
      local at = now()
      return { string.format('%d', math.floor(at / 1000000)), string.format('%d', at % 1000000) }
    elseif command == 'SET' then
      local key, value, how, idle_at = unpack(arguments)
      if #arguments ~= 4 or how ~= 'PXAT' or type(idle_at) ~= 'string' then
        error('a value without an expiry')
      end
      real.call('HSET', 'test:expiries', key, idle_at)
      return real.call('SET', key, value)
    elseif command == 'DEL' then
      real.call('HDEL', 'test:expiries', unpack(arguments))
    elseif real.call('EXISTS', 'test:forgets') == 1 then
      forget(arguments)
    end
    return real.call(command, ...)
  end
  return { call = call, error_reply = real.error_reply }
end)(redis)
";

pub(crate) struct MockClockScript {
    pub(crate) connection: Connection,
    pub(crate) sha: String,
    _server: Server,
}

impl MockClockScript {
    pub(crate) fn start() -> Self {
        MockClockScript::of(Kind::Redis)
    }

    pub(crate) fn of(kind: Kind) -> Self {
        MockClockScript::with(kind, &script())
    }

    /// Starts with another script.
    pub(crate) fn with(kind: Kind, script: &str) -> Self {
        let server = Server::of(kind);
        let (connection, sha) = server.load(&format!("{CLOCK}{script}"));
        MockClockScript { connection, sha, _server: server }
    }

    /// Loads another script in place of this one.
    pub(crate) fn load(&mut self, script: &str) {
        let mut load = redis::cmd("SCRIPT");
        load.arg("LOAD").arg(format!("{CLOCK}{script}"));
        self.sha = load.query(&mut self.connection).expect("the script is Lua");
    }

    pub(crate) fn call(
        &mut self,
        at: Micros,
        operation: &str,
        args: &[RuleArgs],
        id: Option<&[u8]>,
    ) -> Reply {
        let mut pipe = redis::pipe();
        call_at(&mut pipe, at, call(&self.sha, operation, args, id));
        self.replies(&pipe).remove(0)
    }

    /// The same, with all numbers of the reply.
    pub(crate) fn numbers(
        &mut self,
        at: Micros,
        operation: &str,
        args: &[RuleArgs],
        id: Option<&[u8]>,
    ) -> (RuleReply, Vec<u64>) {
        let mut pipe = redis::pipe();
        call_at(&mut pipe, at, call(&self.sha, operation, args, id));
        let replies: Vec<Vec<u64>> = pipe.query(&mut self.connection).expect("the script replies");
        (Reply::decode(&replies[0]).rules[0], replies[0].clone())
    }

    /// The replies to a pipeline of requests.
    pub(crate) fn replies(&mut self, pipe: &Pipeline) -> Vec<Reply> {
        let replies: Vec<Vec<u64>> = pipe.query(&mut self.connection).expect("the script replies");
        replies.iter().map(|numbers| Reply::decode(numbers)).collect()
    }

    /// The millisecond at which a key expires; `None` if it does not exist.
    pub(crate) fn expiry(&mut self, key: &str) -> Option<u64> {
        let exists: bool = redis::cmd("EXISTS").arg(key).query(&mut self.connection).expect("a reply");
        let expiry: Option<u64> =
            redis::cmd("HGET").arg("test:expiries").arg(key).query(&mut self.connection).expect("a reply");
        assert_eq!(exists, expiry.is_some(), "{key}");
        expiry
    }

    /// Sets whether values expire by the test's clock.
    pub(crate) fn forget(&mut self, forgets: bool) {
        let mut command = redis::cmd(if forgets { "SET" } else { "DEL" });
        command.arg("test:forgets");
        if forgets {
            command.arg("1");
        }
        command.exec(&mut self.connection).expect("a reply");
    }

    pub(crate) fn clear(&mut self) {
        redis::cmd("FLUSHALL").exec(&mut self.connection).expect("a reply");
    }
}
