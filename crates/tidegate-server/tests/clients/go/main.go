// go-redis against a Tidegate server: both dialects, the table of CL.THROTTLE, long pipelines, a transaction, places.
package main

import (
	"context"
	"fmt"
	"os"
	"reflect"
	"strconv"
	"strings"

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

func number(text string) int64 {
	value, err := strconv.ParseInt(text, 10, 64)
	must(err)
	return value
}

// fits: the same, but for seconds that have passed.
func fits(got, want string) bool {
	most, isAbout := strings.CutPrefix(want, "~")
	if !isAbout {
		return got == want
	}
	return number(most)-60 <= number(got) && number(got) <= number(most)
}

func fitsAll(got, want string) bool {
	if strings.HasPrefix(want, "ERR") || strings.HasPrefix(got, "ERR") {
		return got == want
	}
	gots, wants := strings.Fields(got), strings.Fields(want)
	for i := range wants {
		if len(gots) != len(wants) || !fits(gots[i], wants[i]) {
			return false
		}
	}
	return true
}

func throttle(ctx context.Context, client *redis.Client, words ...any) string {
	reply, err := client.Do(ctx, append([]any{"CL.THROTTLE"}, words...)...).Slice()
	if err != nil {
		return err.Error()
	}
	return strings.Trim(fmt.Sprint(reply), "[]")
}

// table: what is sent, and what comes back.
func table(ctx context.Context, client *redis.Client, key func(string) string, path string) {
	text, err := os.ReadFile(path)
	must(err)
	for _, line := range strings.Split(strings.TrimSpace(string(text)), "\n") {
		sent, want, isRow := strings.Cut(line, "->")
		if strings.HasPrefix(line, "#") || !isRow {
			continue
		}
		fields := strings.Fields(sent)
		words := []any{key("table:" + fields[0])}
		for _, field := range fields[1:] {
			words = append(words, field)
		}
		if got := throttle(ctx, client, words...); !fitsAll(got, strings.TrimSpace(want)) {
			panic(fmt.Sprintf("CL.THROTTLE %s: got %s, want %s", sent, got, want))
		}
	}
}

// pass: how many of a thousand in one pipeline.
func pass(ctx context.Context, client *redis.Client, words ...any) int {
	pipeline := client.Pipeline()
	for i := 0; i < 1000; i++ {
		pipeline.Do(ctx, append([]any{"CL.THROTTLE"}, words...)...)
	}
	replies, err := pipeline.Exec(ctx)
	must(err)
	passed := 0
	for _, reply := range replies {
		if reply.(*redis.Cmd).Val().([]any)[0] == int64(0) {
			passed++
		}
	}
	return passed
}

func talk(address, path string, protocol int) {
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

	table(ctx, client, key, path)
	expect("any bytes", throttle(ctx, client, key("\xff\x00"), 0, 1, 3600), "0 1 0 -1 3600")
	expect("passed of 1000", pass(ctx, client, key("many"), 499, 1, 3600, 1), 500)
	expect("not all below a millisecond", pass(ctx, client, key("fast"), 0, 1001, 1) < 1000, true)

	replies, err := client.TxPipelined(ctx, func(tx redis.Pipeliner) error {
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
		talk(os.Args[1], os.Args[2], protocol)
	}
	fmt.Println("fine")
}
