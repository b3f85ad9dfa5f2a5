package kafka

import (
	"errors"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// Feature: transactions
func TestOnlyCommittedRecordsAreRead(t *testing.T) {
	w := newWorld(t, 2)
	client := w.client(kgo.TransactionalID(w.topic))
	for value, end := range map[string]kgo.TransactionEndTry{
		"first": kgo.TryAbort, "second": kgo.TryCommit, "third": kgo.TryAbort, "fourth": kgo.TryCommit,
	} {
		w.must(client.BeginTransaction())
		w.produce(client, w.values(value)...)
		w.must(client.EndTransaction(w.ctx, end))
	}
	found := valuesOf(w.poll(w.reader(w.topic), 2))
	same(w, sorted(found), []string{"fourth", "second"})
}

// Feature: zombies are fenced
func TestAProducerOfTheSameIDFencesTheOneBefore(t *testing.T) {
	w := newWorld(t, 1)
	zombie, successor := w.client(kgo.TransactionalID(w.topic)), w.client(kgo.TransactionalID(w.topic))
	w.must(zombie.BeginTransaction())
	w.produce(zombie, w.values("of the zombie")...)
	w.must(successor.BeginTransaction())
	w.produce(successor, w.values("of its successor")...)
	w.must(successor.EndTransaction(w.ctx, kgo.TryCommit))
	err := zombie.EndTransaction(w.ctx, kgo.TryCommit)
	if !errors.Is(err, kerr.InvalidProducerEpoch) && !errors.Is(err, kerr.ProducerFenced) {
		t.Fatalf("the zombie committed: %v", err)
	}
	same(w, valuesOf(w.poll(w.reader(w.topic), 1)), []string{"of its successor"})
}

// Feature: offsets in transactions
func TestRecordsAreCopiedOnceThoughTransactionsAbort(t *testing.T) {
	w := newWorld(t, 2)
	output := w.topic + "-copied"
	w.create(output, 2)
	w.produce(w.client(), w.values(numbers(0, 100)...)...)
	session := w.session(output)
	read := 0
	for round := 0; read < 100; round++ {
		w.must(session.Begin())
		fetches := session.PollRecords(w.ctx, 20)
		w.must(fetches.Err())
		for _, record := range fetches.Records() {
			session.Produce(w.ctx, &kgo.Record{Topic: output, Value: record.Value}, nil)
		}
		wanted := kgo.TransactionEndTry(round%3 != 1) // the second, and every third after it, aborts
		committed, err := session.End(w.ctx, wanted)
		w.must(err)
		if committed {
			read += fetches.NumRecords()
		}
	}
	reader := w.reader(output)
	same(w, sorted(valuesOf(w.poll(reader, 100))), numbers(0, 100))
	ends, err := w.admin().Lag(w.ctx, w.topic)
	w.must(err)
	group := ends[w.topic]
	same(w, []int64{group.Lag.Total()}, []int64{0})
}

// session is a consumer of the topic whose offsets its own transactions commit.
func (w *world) session(output string) *kgo.GroupTransactSession {
	w.Helper()
	session, err := kgo.NewGroupTransactSession(w.with([]kgo.Opt{
		kgo.TransactionalID(output),
		kgo.ConsumerGroup(w.topic),
		kgo.ConsumeTopics(w.topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.RequireStableFetchOffsets(),
	})...)
	w.must(err)
	w.Cleanup(session.Close)
	return session
}
