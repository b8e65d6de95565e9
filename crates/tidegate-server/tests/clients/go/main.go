// go-redis against a Tidegate server: both dialects, a long pipeline, a transaction, CL.THROTTLE and places.
package main

import (
	"context"
	"fmt"
	"os"
	"reflect"

	"github.com/redis/go-redis/v9"
)

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func expect(what string, got, want any) {
	if !reflect.DeepEqual(got, want) {
		panic(fmt.Sprintf("%s: got %v, want %v", what, got, want))
	}
}

func numbers(values ...int64) []any {
	all := make([]any, len(values))
	for i, value := range values {
		all[i] = value
	}
	return all
}

func talk(address string, protocol int) {
	ctx := context.Background()
	client := redis.NewClient(&redis.Options{
		Addr: address, Protocol: protocol, Username: "alice", Password: "wonder", ClientName: "go",
	})
	defer client.Close()
	must(client.Ping(ctx).Err())
	key := func(name string) string { return fmt.Sprintf("go%d:%s", protocol, name) }

	got, err := client.Do(ctx, "CL.THROTTLE", key("first"), 15, 30, 60, 1).Result()
	must(err)
	expect("CL.THROTTLE", got, any(numbers(0, 16, 15, -1, 2)))

	pipeline := client.Pipeline()
	for i := 0; i < 1000; i++ {
		pipeline.Do(ctx, "CL.THROTTLE", key("many"), 499, 1, 3600, 1)
	}
	replies, err := pipeline.Exec(ctx)
	must(err)
	passed := 0
	for _, reply := range replies {
		if reply.(*redis.Cmd).Val().([]any)[0] == int64(0) {
			passed++
		}
	}
	expect("passed of 1000", passed, 500)

	replies, err = client.TxPipelined(ctx, func(tx redis.Pipeliner) error {
		tx.Do(ctx, "CL.THROTTLE", key("tx"), 1, 1, 3600)
		tx.Do(ctx, "CL.THROTTLE", key("tx"), 1, 1, 3600)
		return nil
	})
	must(err)
	expect("transaction", replies[1].(*redis.Cmd).Val(), any(numbers(0, 2, 0, -1, 7200)))

	acquired, err := client.Do(ctx, "TG.ACQUIRE", "at work", key("work")).Slice()
	must(err)
	expect("acquired", acquired[0], any(int64(1)))
	released, err := client.Do(ctx, "TG.RELEASE", acquired[8]).Int()
	must(err)
	expect("released", released, 1)
	expect("error", client.Do(ctx, "TG.CHECK", "nobody", "k").Err().Error(),
		"ERR there is no rule 'nobody'; the configuration has the names")
	deleted, err := client.Del(ctx, key("first"), key("none")).Result()
	must(err)
	expect("deleted", deleted, int64(1))
}

func main() {
	for _, protocol := range []int{2, 3} {
		talk(os.Args[1], protocol)
	}
	fmt.Println("fine")
}
