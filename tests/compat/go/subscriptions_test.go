package compat

import (
	"context"
	"testing"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
)

const count = 60

func (w *world) publishNumbers(batched bool) []string {
	w.Helper()
	producer := w.producer(pulsar.ProducerOptions{DisableBatching: !batched})
	values := numbers(count)
	messages := make([]*pulsar.ProducerMessage, count)
	for place, value := range values {
		messages[place] = keyed(string(rune('a'+place%7)), value)
	}
	w.send(producer, messages...)
	return values
}

// Feature: exclusive
func TestAnExclusiveConsumerGetsAllInOrderAndKeepsOthersOut(t *testing.T) {
	w := newWorld(t)
	consumer := w.subscribe(pulsar.ConsumerOptions{})
	_, err := w.client.Subscribe(w.completed(pulsar.ConsumerOptions{Name: "other"}))
	w.refused(err, "ConsumerBusy")
	values := w.publishNumbers(false)
	same(w, valuesOf(w.take(consumer, count)), values)
	w.nothingMore(consumer)
}

// Feature: failover
func TestAFailoverTakesOverWhereTheActiveOneStopped(t *testing.T) {
	w := newWorld(t)
	failover := pulsar.ConsumerOptions{Type: pulsar.Failover, Name: "a"}
	first := w.subscribe(failover)
	failover.Name = "b"
	second := w.subscribe(failover)
	values := w.publishNumbers(false)
	same(w, valuesOf(w.take(first, 20)), values[:20])
	w.nothingMore(second)
	first.Close()
	same(w, valuesOf(w.take(second, count-20)), values[20:])
}

// takeInTurns receives from the consumers in turn until all messages have arrived.
func (w *world) takeInTurns(consumers ...pulsar.Consumer) [][]pulsar.Message {
	w.Helper()
	taken := make([][]pulsar.Message, len(consumers))
	deadline := time.Now().Add(soon)
	for found := 0; found < count; {
		for place, consumer := range consumers {
			within, cancel := context.WithTimeout(context.Background(), 5*time.Millisecond)
			message, err := consumer.Receive(within)
			cancel()
			if err == nil {
				w.must(consumer.Ack(message))
				taken[place] = append(taken[place], message)
				found++
			}
		}
		if time.Now().After(deadline) {
			w.Fatalf("only %d of %d came", found, count)
		}
	}
	return taken
}

// Feature: shared
func TestSharedConsumersDivideTheMessages(t *testing.T) {
	w := newWorld(t)
	shared := pulsar.ConsumerOptions{Type: pulsar.Shared, ReceiverQueueSize: 5}
	consumers := []pulsar.Consumer{w.subscribe(shared), w.subscribe(shared)}
	w.untilAsked(2)
	values := w.publishNumbers(false)
	taken := w.takeInTurns(consumers...)
	seen := map[string]bool{}
	for _, messages := range taken {
		if len(messages) == 0 {
			w.Fatal("a consumer got nothing")
		}
		for _, value := range valuesOf(messages) {
			seen[value] = true
		}
	}
	equal(w, len(seen), len(values))
}

// Feature: key_shared
func TestAKeyStaysWithItsConsumerAndInOrder(t *testing.T) {
	w := newWorld(t)
	byKey := pulsar.ConsumerOptions{Type: pulsar.KeyShared}
	consumers := []pulsar.Consumer{w.subscribe(byKey), w.subscribe(byKey), w.subscribe(byKey)}
	w.publishNumbers(false)
	owners, last := map[string]int{}, map[string]string{}
	for owner, messages := range w.takeInTurns(consumers...) {
		for _, message := range messages {
			key, value := message.Key(), string(message.Payload())
			if before, known := owners[key]; known && before != owner {
				w.Fatalf("key %s went to two consumers", key)
			}
			if value <= last[key] {
				w.Fatalf("%s came after %s", value, last[key])
			}
			owners[key], last[key] = owner, value
		}
	}
	equal(w, len(owners), 7)
}

// Feature: sticky hash ranges
func TestStickyRangesChooseTheConsumer(t *testing.T) {
	w := newWorld(t)
	var consumers []pulsar.Consumer
	for _, ranges := range [][]int{{0, 32767}, {32768, 65535}} {
		policy, err := pulsar.NewKeySharedPolicySticky(ranges)
		w.must(err)
		sticky := pulsar.ConsumerOptions{Type: pulsar.KeyShared, KeySharedPolicy: policy}
		consumers = append(consumers, w.subscribe(sticky))
	}
	overlap, err := pulsar.NewKeySharedPolicySticky([]int{30000, 40000})
	w.must(err)
	_, err = w.client.Subscribe(w.completed(pulsar.ConsumerOptions{
		Type: pulsar.KeyShared, KeySharedPolicy: overlap,
	}))
	w.refused(err, "ConsumerAssignError")
	w.publishNumbers(false)
	for _, messages := range w.takeInTurns(consumers...) {
		if len(messages) == 0 {
			w.Fatal("half of the hashes is nobody's")
		}
	}
}

// Feature: several topics
func TestSeveralTopicsAreOneSubscription(t *testing.T) {
	w := newWorld(t)
	topics := []string{w.topic + "-1", w.topic + "-2"}
	consumer := w.subscribe(pulsar.ConsumerOptions{Topics: topics})
	for _, topic := range topics {
		w.sendValues(w.producer(pulsar.ProducerOptions{Topic: topic}), topic)
	}
	seen := map[string]bool{}
	for _, value := range valuesOf(w.take(consumer, 2)) {
		seen[value] = true
	}
	equal(w, len(seen), 2)
}

// Feature: pattern subscription
func TestAPatternHearsOfANewTopicWithoutAskingAgain(t *testing.T) {
	w := newWorld(t)
	consumer := w.subscribe(pulsar.ConsumerOptions{
		TopicsPattern: w.topic + "-.*", AutoDiscoveryPeriod: time.Second,
	})
	w.sendValues(w.producer(pulsar.ProducerOptions{Topic: w.topic + "-late"}), "m")
	same(w, valuesOf(w.take(consumer, 1)), []string{"m"})
}

// Feature: unsubscribing
func TestUnsubscribingForgetsThePosition(t *testing.T) {
	w := newWorld(t)
	values := w.publishNumbers(true)
	consumer := w.subscribe(pulsar.ConsumerOptions{})
	same(w, valuesOf(w.take(consumer, count)), values)
	w.must(consumer.Unsubscribe())
	same(w, valuesOf(w.take(w.subscribe(pulsar.ConsumerOptions{}), count)), values)
}
