-- Tidegate: the Redis script that decides requests. Wire version 1.
--
-- script.lua is the concatenation of the files in script/, in the order of their names. Edit those and run `scripts/lua`;
-- `scripts/check` and a test fail if script.lua is anything else.
--
-- A call names keys, an operation, and a cost and a rule for each key. The script reads the server's clock, decides, charges
-- every key or none, and returns the decisions, in one atomic step. WIRE.md describes the arguments, the reply and the values.
-- The algorithms are those of `tidegate-core`; a test runs both through the same 100,000 random steps and compares every
-- number. The fast paths are tested against the general path in the same way.
--
--   EVALSHA ─► one token bucket, check? ──yes──► decide, write, reply            no function is created on this path
--                 │ no
--                 ├─ only token buckets, check? ──yes──► the same in a loop
--                 │ no
--                 └─ parse the arguments ─► read every state ─► evaluate all ─► charge all or none ─► reply
--
-- Numbers are doubles, exact for integers up to 2^53. Instants are microseconds since 1970 and end there. Intervals are
-- fractions p/q, and time is counted in units of 1/q microsecond. As long as a < 2^53, math.floor(a / b), math.ceil(a / b)
-- and a % b are exact; so is (a + -a % b) / b, which equals the ceiling and is cheaper, if a + b is below 2^53 too. Where a
-- number may grow beyond that, a comment says why the result is still right.
--
-- A token bucket is stored as "`used` tokens, as of `since`", where `since` is less than one interval before the write. This
-- is the instant at which the bucket is full again, expressed in whole tokens:
--
--        since          now                         bucket full
--   ───────┼──────────────┼────────────────────────────┼──────► t
--          ├── elapsed ───┤                            │
--          ├──────────────── used · p/q ───────────────┤
--
-- Unlike an instant it survives a change of the quota, because it counts tokens and not time; and after a large backward step
-- of the clock it still says what was used. The top three bits of a value's first byte are the number of its layout:
--
--   0  token bucket,   since, part, used: 7 + 1 + 4 bytes, or 7 + 7 + 7. The bucket is as of `since` + part/q µs. After a
--      leaky queue     large backward step of the clock 7 + 7 + 7 + 7 + 7: high-water mark of the clock, time of the write
--   1  nginx queue     number, last (ms), owed (thousandths of a request)
--   2  stepped bucket  number, first instant of the step, used
--   3  fixed window    number and end, count: 7 + 5 bytes, or 7 + 7   aligned to the clock
--   4                  number, opened, length, count                  from the first hit
--   5  sliding log     number, instants, oldest first. After a large backward step of the clock the lowest bit of the first
--                      byte is set, and the high-water mark precedes the instants
--   6  sliding window  number, period, cells, newest cell, counts of the cells up to the newest, 4 bytes each. After a large
--                      backward step the lowest bit is set, and the cell of the high-water mark precedes the counts, 7 bytes
--   7  permits         number, sum of costs, entries: expires, cost, id
--
-- The high-water mark is the latest instant the state was written at before the clock stepped back. It is kept so that a clock
-- that steps back and forth does not create tokens.
--
-- A bucket of 7 + 7 + 7 bytes or more may be followed by grants and reservations of 7 + 4 + 16 bytes each: expires, amount,
-- id. A grant is tokens that a node has taken in advance to spend without a round trip. Until the node reports what is left
-- of it, or it expires, the bucket does not refill beyond it, because it may be unspent:
--
--   0 ├──── live grants ────┼── used otherwise ──┼──────── available ────────┤ burst
--                           ◄── refills up to here
--
-- A reservation, marked by the top bit of its first byte, is tokens that have not refilled yet. They are charged, so `used`
-- may exceed the burst, but the node may not spend them: it claims them when they have refilled, and the claim turns the
-- reservation into a grant. So a node that cannot reach Redis, or a Redis that lost its data, leaves no promise of tokens.
--
-- A value of another algorithm's layout is charged to the new rule, as if all of it had been used now.

local KEYS, ARGV = KEYS, ARGV -- a local is cheaper than a global
local END = 9007199254740991 -- the last instant, 2^53 - 1
local LONGEST_LEASE = 3600000000 -- one hour

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
