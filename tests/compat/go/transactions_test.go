package compat

import (
	"context"
	"testing"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
)

func (w *world) begin(timeout time.Duration) pulsar.Transaction {
	w.Helper()
	txn, err := w.client.NewTransaction(timeout)
	w.must(err)
	return txn
}

func (w *world) commit(txn pulsar.Transaction) {
	w.Helper()
	w.must(txn.Commit(context.Background()))
}

func (w *world) abort(txn pulsar.Transaction) {
	w.Helper()
	w.must(txn.Abort(context.Background()))
}

// A producer that sends both in transactions and plainly must not use batches: the client's next
// batches would still name the finished transaction.
var mixed = pulsar.ProducerOptions{DisableBatching: true}

func inside(txn pulsar.Transaction, value string) *pulsar.ProducerMessage {
	return &pulsar.ProducerMessage{Payload: []byte(value), Transaction: txn}
}

// Feature: transactions
func TestSeveralTopicsBecomeVisibleTogether(t *testing.T) {
	w := newWorld(t)
	var consumers []pulsar.Consumer
	txn := w.begin(time.Minute)
	for _, end := range []string{"-1", "-2", "-3"} {
		consumers = append(consumers, w.subscribe(pulsar.ConsumerOptions{Topic: w.topic + end}))
		producer := w.producer(pulsar.ProducerOptions{Topic: w.topic + end})
		w.send(producer, inside(txn, "m"), inside(txn, "n"))
	}
	w.nothingMore(consumers...)
	w.commit(txn)
	equal(w, txn.GetState(), pulsar.TxnCommitted)
	for _, consumer := range consumers {
		same(w, valuesOf(w.take(consumer, 2)), []string{"m", "n"})
	}
}

// Feature: transactions
func TestAnAbortedTransactionShowsNothing(t *testing.T) {
	w := newWorld(t)
	consumer := w.subscribe(pulsar.ConsumerOptions{})
	producer := w.producer(mixed)
	txn := w.begin(time.Minute)
	w.send(producer, inside(txn, "aborted"))
	w.abort(txn)
	w.sendValues(producer, "plain")
	same(w, valuesOf(w.take(consumer, 1)), []string{"plain"})
	w.nothingMore(consumer)
	w.refused(txn.Commit(context.Background()), "")
}

// Feature: transactions
func TestWhatACommittedTransactionAcknowledgedNeverComesAgain(t *testing.T) {
	w := newWorld(t)
	for _, alone := range []bool{true, false} {
		w.topic += "x"
		consumer := w.subscribe(pulsar.ConsumerOptions{Type: pulsar.Shared})
		w.sendValues(w.producer(pulsar.ProducerOptions{DisableBatching: alone}), numbers(3)...)
		txn := w.begin(time.Minute)
		for range 3 {
			w.must(consumer.AckWithTxn(w.receive(consumer), txn))
		}
		w.commit(txn)
		stats, err := w.admin().Topics().GetStats(w.topicName())
		w.must(err)
		equal(w, stats.Subscriptions["s"].UnAckedMessages, 0)
		consumer.Close()
		w.nothingMore(w.subscribe(pulsar.ConsumerOptions{Type: pulsar.Shared}))
	}
}

// Feature: transactions
func TestWhatAnAbortedTransactionAcknowledgedComesAgain(t *testing.T) {
	w := newWorld(t)
	consumer := w.subscribe(pulsar.ConsumerOptions{Type: pulsar.Shared})
	values := numbers(3)
	w.sendValues(w.producer(pulsar.ProducerOptions{DisableBatching: true}), values...)
	txn := w.begin(time.Minute)
	for range 3 {
		w.must(consumer.AckWithTxn(w.receive(consumer), txn))
	}
	w.abort(txn)
	consumer.Close()
	same(w, valuesOf(w.take(w.subscribe(pulsar.ConsumerOptions{Type: pulsar.Shared}), 3)), values)
}

// Feature: transactions
func TestOneMessageIsAcknowledgedByOneTransaction(t *testing.T) {
	w := newWorld(t)
	consumer := w.subscribe(pulsar.ConsumerOptions{Type: pulsar.Shared})
	w.sendValues(w.producer(pulsar.ProducerOptions{DisableBatching: true}), "m")
	message, first, second := w.receive(consumer), w.begin(time.Minute), w.begin(time.Minute)
	w.must(consumer.AckWithTxn(message, first))
	w.refused(consumer.AckWithTxn(message, second), "Conflict")
	w.commit(first)
}

// Feature: transactions
func TestATransactionThatTimesOutIsAborted(t *testing.T) {
	w := newWorld(t)
	consumer := w.subscribe(pulsar.ConsumerOptions{})
	producer := w.producer(mixed)
	txn := w.begin(time.Minute)
	w.send(producer, inside(txn, "late"))
	w.sendValues(producer, "plain")
	w.advanceClock("61s")
	same(w, valuesOf(w.take(consumer, 1)), []string{"plain"})
	w.refused(txn.Commit(context.Background()), "")
	w.nothingMore(consumer)
}
