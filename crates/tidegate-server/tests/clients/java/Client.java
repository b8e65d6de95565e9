// Jedis against a Tidegate server: both dialects, CL.THROTTLE, a long pipeline, a transaction, places.

import java.util.ArrayList;
import java.util.List;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.Jedis;
import redis.clients.jedis.RedisProtocol;
import redis.clients.jedis.Response;
import redis.clients.jedis.commands.ProtocolCommand;

public class Client {
    static ProtocolCommand command(String name) {
        return name::getBytes;
    }

    static void expect(String what, Object got, Object want) {
        if (!got.equals(want)) {
            throw new AssertionError(what + ": got " + got + ", want " + want);
        }
    }

    static void talk(String host, int port, RedisProtocol protocol) {
        var config = DefaultJedisClientConfig.builder()
                .user("alice").password("wonder").clientName("java").protocol(protocol).build();
        try (var jedis = new Jedis(new HostAndPort(host, port), config)) {
            var prefix = "java:" + protocol + ":";
            expect("ping", jedis.ping(), "PONG");
            var first = jedis.sendCommand(command("CL.THROTTLE"), prefix + "first", "15", "30", "60", "1");
            expect("throttle", first, List.of(0L, 16L, 15L, -1L, 2L));

            var pipeline = jedis.pipelined();
            var replies = new ArrayList<Response<Object>>();
            for (int i = 0; i < 1000; i++) {
                replies.add(pipeline.sendCommand(command("CL.THROTTLE"), prefix + "many", "499", "1", "3600"));
            }
            pipeline.sync();
            expect("passed", replies.stream().filter(r -> ((List<?>) r.get()).get(0).equals(0L)).count(), 500L);

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

    public static void main(String[] args) {
        for (var protocol : new RedisProtocol[] {RedisProtocol.RESP2, RedisProtocol.RESP3}) {
            talk(args[0], Integer.parseInt(args[1]), protocol);
        }
        System.out.println("fine");
    }
}
