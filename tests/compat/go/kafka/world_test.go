// Package kafka tests franz-go, a client of Kafka's, with the broker, one fact per test.
//
// pytest builds this package once and runs each test against its broker (test_official_franz_go.py).
// Each comment `Feature: name` above a test names a row of the table of Kafka's clients in
// docs/clients.md.
package kafka

import (
	"context"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

const soon = time.Minute // a limit for what is expected, even on a busy machine

// A world is one test with its own topic of a few partitions.
type world struct {
	*testing.T
	ctx   context.Context
	topic string
}

func newWorld(t *testing.T, partitions int32) *world {
	ctx, cancel := context.WithTimeout(context.Background(), soon)
	t.Cleanup(cancel)
	w := &world{t, ctx, "franz-" + t.Name()}
	w.create(w.topic, partitions)
	return w
}

func (w *world) create(topic string, partitions int32) {
	w.Helper()
	answer, err := w.admin().CreateTopic(w.ctx, partitions, 1, nil, topic)
	w.must(err)
	w.must(answer.Err)
}

func (w *world) client(options ...kgo.Opt) *kgo.Client {
	w.Helper()
	client, err := kgo.NewClient(w.with(options)...)
	w.must(err)
	w.Cleanup(client.Close)
	return client
}

func (w *world) with(options []kgo.Opt) []kgo.Opt {
	return append([]kgo.Opt{kgo.SeedBrokers(os.Getenv("KAFKA_BOOTSTRAP"))}, options...)
}

func (w *world) admin() *kadm.Client {
	w.Helper()
	return kadm.NewClient(w.client())
}

func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

func (w *world) produce(client *kgo.Client, records ...*kgo.Record) {
	w.Helper()
	w.must(client.ProduceSync(w.ctx, records...).FirstErr())
}

func (w *world) values(values ...string) []*kgo.Record {
	records := make([]*kgo.Record, len(values))
	for place, value := range values {
		records[place] = &kgo.Record{Topic: w.topic, Value: []byte(value)}
	}
	return records
}

// reader reads the topic from its beginning, committed records alone, without a group.
func (w *world) reader(topic string, options ...kgo.Opt) *kgo.Client {
	w.Helper()
	return w.client(append([]kgo.Opt{
		kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
	}, options...)...)
}

// member is a member of a group that commits when it is told to.
func (w *world) member(group string, options ...kgo.Opt) *kgo.Client {
	w.Helper()
	return w.reader(w.topic, append([]kgo.Opt{
		kgo.ConsumerGroup(group), kgo.DisableAutoCommit(),
	}, options...)...)
}

type poller interface {
	PollRecords(ctx context.Context, most int) kgo.Fetches
}

func (w *world) poll(client poller, count int) []*kgo.Record {
	w.Helper()
	var records []*kgo.Record
	for len(records) < count {
		fetches := client.PollRecords(w.ctx, count-len(records))
		w.must(fetches.Err())
		records = append(records, fetches.Records()...)
	}
	return records
}

func valuesOf(records []*kgo.Record) []string {
	values := make([]string, len(records))
	for place, record := range records {
		values[place] = string(record.Value)
	}
	return values
}

func sorted(values []string) []string {
	slices.Sort(values)
	return values
}

func numbers(from, to int) []string {
	values := make([]string, 0, to-from)
	for number := from; number < to; number++ {
		values = append(values, fmt.Sprintf("%03d", number))
	}
	return values
}

func same[T comparable](w *world, found, wanted []T) {
	w.Helper()
	if !slices.Equal(found, wanted) {
		w.Fatalf("found %v, wanted %v", found, wanted)
	}
}
