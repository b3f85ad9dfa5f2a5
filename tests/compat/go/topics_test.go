package compat

import (
	"context"
	"strings"
	"testing"

	"github.com/apache/pulsar-client-go/pulsar"
)

// Feature: partitioned topics, admin client
func TestEveryPartitionIsUsedAndAKeyStaysInItsPartition(t *testing.T) {
	w := newWorld(t)
	w.must(w.admin().Topics().Create(w.topicName(), 4))
	partitions, err := w.client.TopicPartitions(w.topic)
	w.must(err)
	equal(w, len(partitions), 4)
	consumer := w.subscribe(pulsar.ConsumerOptions{})
	producer := w.producer(pulsar.ProducerOptions{DisableBatching: true})
	used := map[int32]bool{}
	for _, id := range w.sendValues(producer, numbers(40)...) {
		used[id.PartitionIdx()] = true
	}
	equal(w, len(used), 4)
	first := w.send(producer, keyed("k", "1"))[0]
	again := w.send(producer, keyed("k", "2"))[0]
	equal(w, again.PartitionIdx(), first.PartitionIdx())
	w.take(consumer, 42)
	w.nothingMore(consumer)
}

// Feature: non-persistent topics, admin client
func TestATopicThatKeepsNothingServesWhoIsThere(t *testing.T) {
	w := newWorld(t)
	for _, kind := range []pulsar.SubscriptionType{
		pulsar.Exclusive, pulsar.Failover, pulsar.Shared, pulsar.KeyShared,
	} {
		w.topic = "non-" + strings.TrimPrefix(w.topic, "non-") + "x"
		producer := w.producer(pulsar.ProducerOptions{})
		w.sendValues(producer, "nobody is there")
		consumer := w.subscribe(pulsar.ConsumerOptions{Type: kind})
		w.untilAsked(1)
		w.sendValues(producer, numbers(5)...)
		same(w, valuesOf(w.take(consumer, 5)), numbers(5))
		w.nothingMore(consumer)
	}
}

// Feature: terminated topics, admin client
func TestATerminatedTopicTakesNothingMore(t *testing.T) {
	w := newWorld(t)
	producer := w.producer(pulsar.ProducerOptions{DisableBatching: true})
	ids := w.sendValues(producer, "last")
	last, err := w.admin().Topics().Terminate(w.topicName())
	w.must(err)
	equal(w, last.EntryID, ids[0].EntryID())
	_, err = producer.Send(context.Background(), text("more"))
	// If the client already knows of the termination, it only says that its producer is closed.
	w.refused(err, "terminated", "ProducerClosed")
	_, err = w.client.CreateProducer(pulsar.ProducerOptions{Topic: w.topic})
	w.refused(err, "TopicTerminated")
	same(w, valuesOf(w.take(w.subscribe(pulsar.ConsumerOptions{}), 1)), []string{"last"})
}

// Feature: deduplication, admin client
func TestASequenceIdThatWasSeenIsNotStoredAgain(t *testing.T) {
	w := newWorld(t)
	consumer := w.subscribe(pulsar.ConsumerOptions{})
	w.must(w.admin().Topics().SetDeduplicationStatus(w.topicName(), true))
	named := pulsar.ProducerOptions{Name: "once", DisableBatching: true}
	for _, sequences := range [][]int64{{0, 1, 2}, {1, 2, 3}} {
		producer := w.producer(named)
		for _, sequence := range sequences {
			message := text(numbers(4)[sequence])
			message.SequenceID = &sequence
			w.send(producer, message)
		}
		producer.Close()
	}
	same(w, valuesOf(w.take(consumer, 4)), numbers(4))
	w.nothingMore(consumer)
}

// Feature: producer and consumer properties, admin client
func TestTheStatsShowWhoIsThere(t *testing.T) {
	w := newWorld(t)
	w.producer(pulsar.ProducerOptions{Name: "p", Properties: map[string]string{"made": "by p"}})
	w.subscribe(pulsar.ConsumerOptions{
		Name: "c", Properties: map[string]string{"made": "by c"},
		SubscriptionProperties: map[string]string{"made": "by s"},
	})
	stats, err := w.admin().Topics().GetStats(w.topicName())
	w.must(err)
	equal(w, stats.Publishers[0].ProducerName, "p")
	equal(w, stats.Publishers[0].Metadata["made"], "by p")
	subscription := stats.Subscriptions["s"]
	equal(w, subscription.SubscriptionProperties["made"], "by s")
	equal(w, subscription.Consumers[0].ConsumerName, "c")
	equal(w, subscription.Consumers[0].Metadata["made"], "by c")
	equal(w, strings.Contains(subscription.Consumers[0].ClientVersion, "Go"), true)
}
