-- == The strictest decision ====================================================================================

-- Returns the position, from 1, of the strictest decision in a reply: by outcome, then wait, remaining and reset.
local function strictest(reply)
  local position, outcome, remaining, wait, reset = 1, reply[3], reply[4], reply[5], reply[6]
  for i = 2, #KEYS do
    local at = 4 * i
    local by_outcome, by_wait = reply[at - 1] - outcome, reply[at + 1] - wait
    local by_remaining, by_reset = remaining - reply[at], reply[at + 2] - reset
    if by_outcome > 0 or (by_outcome == 0 and (by_wait > 0 or (by_wait == 0 and
        (by_remaining > 0 or (by_remaining == 0 and by_reset > 0))))) then
      position, outcome, remaining, wait, reset = i, reply[at - 1], reply[at], reply[at + 1], reply[at + 2]
    end
  end
  return position
end
