// Jedis against a Tidegate server: both dialects, the table of CL.THROTTLE, long pipelines, a transaction, places.

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.stream.Collectors;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.Jedis;
import redis.clients.jedis.RedisProtocol;
import redis.clients.jedis.Response;
import redis.clients.jedis.commands.ProtocolCommand;
import redis.clients.jedis.exceptions.JedisDataException;

public class Client {
    static ProtocolCommand command(String name) {
        return name::getBytes;
    }

    static void expect(String what, Object got, Object want) {
        if (!got.equals(want)) {
            throw new AssertionError(what + ": got " + got + ", want " + want);
        }
    }

    /** The same, but for seconds that have passed. */
    static boolean fits(String got, String want) {
        if (!want.startsWith("~")) {
            return got.equals(want);
        }
        long most = Long.parseLong(want.substring(1));
        return most - 60 <= Long.parseLong(got) && Long.parseLong(got) <= most;
    }

    static boolean fitsAll(String got, String want) {
        if (got.startsWith("ERR") || want.startsWith("ERR")) {
            return got.equals(want);
        }
        String[] gots = got.split(" ");
        String[] wants = want.split(" ");
        boolean fits = gots.length == wants.length;
        for (int i = 0; fits && i < wants.length; i++) {
            fits = fits(gots[i], wants[i]);
        }
        return fits;
    }

    static String throttle(Jedis jedis, String... words) {
        try {
            var reply = (List<?>) jedis.sendCommand(command("CL.THROTTLE"), words);
            return reply.stream().map(String::valueOf).collect(Collectors.joining(" "));
        } catch (JedisDataException error) {
            return error.getMessage();
        }
    }

    /** What is sent, and what comes back. */
    static void table(Jedis jedis, String prefix, String path) throws IOException {
        for (var line : Files.readAllLines(Path.of(path))) {
            if (line.startsWith("#")) {
                continue;
            }
            var row = line.split("->");
            var words = row[0].trim().split("\\s+");
            words[0] = prefix + "table:" + words[0];
            var got = throttle(jedis, words);
            if (!fitsAll(got, row[1].trim())) {
                throw new AssertionError("CL.THROTTLE " + row[0] + ": got " + got + ", want " + row[1]);
            }
        }
    }

    /** How many of a thousand in one pipeline. */
    static long pass(Jedis jedis, String... words) {
        var pipeline = jedis.pipelined();
        var replies = new ArrayList<Response<Object>>();
        for (int i = 0; i < 1000; i++) {
            replies.add(pipeline.sendCommand(command("CL.THROTTLE"), words));
        }
        pipeline.sync();
        return replies.stream().filter(reply -> ((List<?>) reply.get()).get(0).equals(0L)).count();
    }

    static byte[][] bytes(byte[] key, String... words) {
        var rest = Arrays.stream(words).map(String::getBytes).toList();
        var all = new ArrayList<byte[]>(List.of(key));
        all.addAll(rest);
        return all.toArray(new byte[0][]);
    }

    static void talk(String host, int port, String path, RedisProtocol protocol) throws IOException {
        var config = DefaultJedisClientConfig.builder()
                .user("alice").password("wonder").clientName("java").protocol(protocol).build();
        try (var jedis = new Jedis(new HostAndPort(host, port), config)) {
            var prefix = "java:" + protocol + ":";
            expect("ping", jedis.ping(), "PONG");
            var first = jedis.sendCommand(command("CL.THROTTLE"), prefix + "first", "15", "30", "60", "1");
            expect("throttle", first, List.of(0L, 16L, 15L, -1L, 2L));

            table(jedis, prefix, path);
            byte[] key = {(byte) 0xff, 0, (byte) protocol.ordinal()};
            var any = jedis.sendCommand(command("CL.THROTTLE"), bytes(key, "0", "1", "3600"));
            expect("any bytes", any, List.of(0L, 1L, 0L, -1L, 3600L));
            expect("passed", pass(jedis, prefix + "many", "499", "1", "3600"), 500L);
            expect("not all below a millisecond", pass(jedis, prefix + "fast", "0", "1001", "1") < 1000, true);

            var transaction = jedis.multi();
            transaction.sendCommand(command("CL.THROTTLE"), prefix + "tx", "0", "1", "3600");
            transaction.sendCommand(command("CL.THROTTLE"), prefix + "tx", "0", "1", "3600");
            expect("limited", ((List<?>) transaction.exec().get(1)).get(0), 1L);

            var acquired = (List<?>) jedis.sendCommand(command("TG.ACQUIRE"), "at work", prefix);
            expect("allowed", acquired.get(0), 1L);
            var id = new String((byte[]) acquired.get(8));
            expect("released", jedis.sendCommand(command("TG.RELEASE"), id), 1L);
            expect("deleted", jedis.del(prefix + "first", prefix + "none"), 1L);
        }
    }

    public static void main(String[] args) throws IOException {
        for (var protocol : new RedisProtocol[] {RedisProtocol.RESP2, RedisProtocol.RESP3}) {
            talk(args[0], Integer.parseInt(args[1]), args[2], protocol);
        }
        System.out.println("fine");
    }
}
