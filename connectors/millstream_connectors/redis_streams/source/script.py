"""What the server reports about a stream in one step: entries, and how many there were. Lua in Redis 7 or Valkey."""

from __future__ import annotations

from millstream.redis.client import script_of

READ = script_of("""
-- KEYS: the stream.  ARGV: an id, and the maximum number of entries after it.
-- Returns the kind of the key; how many entries were ever added, how many there are, the last id ever assigned, the
-- first remaining one (or ''); and the entries.
local kind = redis.call('TYPE', KEYS[1]).ok
if kind ~= 'stream' then return {kind, 0, 0, '0-0', '', {}} end
local told = redis.call('XINFO', 'STREAM', KEYS[1])
local of = {}
for i = 1, #told, 2 do of[told[i]] = told[i + 1] end
local first = of['first-entry'] and of['first-entry'][1] or ''
local found = {}
if ARGV[2] ~= '0' then found = redis.call('XRANGE', KEYS[1], '(' .. ARGV[1], '+', 'COUNT', ARGV[2]) end
return {kind, of['entries-added'], of['length'], of['last-generated-id'], first, found}
""")

COUNT = script_of("""
-- KEYS: the stream.  ARGV: an id, and the maximum number of entries after it to count.
-- Returns how many there are, the id of the last of them, and how many entries were ever added to the stream.
if redis.call('TYPE', KEYS[1]).ok ~= 'stream' then return {0, ARGV[1], 0} end
local found = redis.call('XRANGE', KEYS[1], '(' .. ARGV[1], '+', 'COUNT', ARGV[2])
local told = redis.call('XINFO', 'STREAM', KEYS[1])
local added = 0
for i = 1, #told, 2 do
  if told[i] == 'entries-added' then added = told[i + 1] end
end
return {#found, #found > 0 and found[#found][1] or ARGV[1], added}
""")
