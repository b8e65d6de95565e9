-- == Fast path: refusal by one of several token buckets ========================================================
--
-- Separate from the fast path because it needs a function. Nothing is written. Rules that would have allowed the request are
-- reported as they were before it.

if refused then
  for i = 1, #KEYS do
    local at = 4 * i
    if refused[at - 1] == 0 then
      local _, q = struct.unpack('>xI8I8', ARGV[2 * i + 1])
      refused[at], refused[at + 1], refused[at + 2] = refused[at] + ARGV[2 * i], 0, math.ceil(refused[at + 1] / q)
    end
  end
  refused[2] = strictest(refused)
  return refused
end
