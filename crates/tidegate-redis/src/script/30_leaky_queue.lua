-- == Leaky queue ===============================================================================================
--
-- A leaky queue lets requests out one interval apart. Its state is that of a token bucket: each request adds one interval to
-- what is owed, and what is owed is how long the last request in the queue waits for its turn. So it has the token bucket's
-- layout and functions, and differs in two numbers, both in units of 1/q microsecond:
--
--   full   what may be owed at most: the length of the queue in time (a bucket has p · burst)
--   free   what may be owed without waiting: one interval for the request itself, and one for each of `delay`
--
--   0 ├──── free: no wait ────┼──── waits until only `free` is owed ────┤ full: refused

-- How long a request waits for its turn if so much is owed after it, in microseconds. 0 for a token bucket.
local function queue_wait(rule, owed)
  return rule.free and math.ceil((owed - rule.free) / rule.q) or 0
end
