package compat

import (
	"testing"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
)

// Feature: negative acknowledgement
func TestANegativeAcknowledgementBringsAMessageAgain(t *testing.T) {
	w := newWorld(t)
	consumer := w.subscribe(pulsar.ConsumerOptions{
		Type: pulsar.Shared, NackRedeliveryDelay: 100 * time.Millisecond,
	})
	w.sendValues(w.producer(pulsar.ProducerOptions{DisableBatching: true}), "m")
	consumer.Nack(w.receive(consumer))
	again := w.take(consumer, 1)[0]
	equal(w, string(again.Payload()), "m")
	equal(w, again.RedeliveryCount(), 1)
	w.nothingMore(consumer)
}

// Feature: cumulative acknowledgement
func TestACumulativeAcknowledgementCoversAllBefore(t *testing.T) {
	w := newWorld(t)
	consumer := w.subscribe(pulsar.ConsumerOptions{AckWithResponse: true})
	values := w.publishNumbers(false)
	var middle pulsar.Message
	for range 30 {
		middle = w.receive(consumer)
	}
	w.must(consumer.AckCumulative(middle))
	consumer.Close()
	again := w.subscribe(pulsar.ConsumerOptions{})
	same(w, valuesOf(w.take(again, count-30)), values[30:])
}

// Feature: batch index acknowledgement
func TestPartOfABatchMayBeAcknowledged(t *testing.T) {
	w := newWorld(t)
	options := pulsar.ConsumerOptions{EnableBatchIndexAcknowledgment: true, AckWithResponse: true}
	consumer := w.subscribe(options)
	producer := w.producer(pulsar.ProducerOptions{BatchingMaxPublishDelay: time.Minute})
	w.sendValues(producer, numbers(5)...)
	for place := range 5 {
		if message := w.receive(consumer); place%2 == 0 {
			w.must(consumer.Ack(message))
		}
	}
	consumer.Close()
	again := w.subscribe(options)
	same(w, valuesOf(w.take(again, 2)), []string{"001", "003"})
	w.nothingMore(again)
}

// Feature: acknowledgement receipts
func TestAnAnsweredAcknowledgementIsKept(t *testing.T) {
	w := newWorld(t)
	consumer := w.subscribe(pulsar.ConsumerOptions{AckWithResponse: true})
	values := w.publishNumbers(false)
	var ids []pulsar.MessageID
	for range 10 {
		ids = append(ids, w.receive(consumer).ID())
	}
	w.must(consumer.AckIDList(ids))
	consumer.Close()
	equal(w, string(w.receive(w.subscribe(pulsar.ConsumerOptions{})).Payload()), values[10])
}

// Feature: dead letter topic
func TestWhatFailsTooOftenGoesToTheDeadLetterTopic(t *testing.T) {
	w := newWorld(t)
	letters := w.subscribe(pulsar.ConsumerOptions{Topic: w.topic + "-dead"})
	consumer := w.subscribe(pulsar.ConsumerOptions{
		Type: pulsar.Shared, NackRedeliveryDelay: 100 * time.Millisecond,
		DLQ: &pulsar.DLQPolicy{MaxDeliveries: 2, DeadLetterTopic: w.topic + "-dead"},
	})
	ids := w.sendValues(w.producer(pulsar.ProducerOptions{}), "poison")
	for range 2 {
		consumer.Nack(w.receive(consumer))
	}
	letter := w.take(letters, 1)[0]
	equal(w, string(letter.Payload()), "poison")
	equal(w, letter.Properties()["REAL_TOPIC"], w.topic)
	equal(w, letter.Properties()["ORIGIN_MESSAGE_ID"] != "", len(ids) == 1)
	w.nothingMore(consumer)
}

// Feature: retry topic, delayed delivery
func TestWhatIsReconsumedLaterComesAgainFromTheRetryTopic(t *testing.T) {
	w := newWorld(t)
	consumer := w.subscribe(pulsar.ConsumerOptions{
		Type: pulsar.Shared, RetryEnable: true,
		DLQ: &pulsar.DLQPolicy{MaxDeliveries: 2, DeadLetterTopic: w.topic + "-dead"},
	})
	letters := w.subscribe(pulsar.ConsumerOptions{Topic: w.topic + "-dead"})
	w.sendValues(w.producer(pulsar.ProducerOptions{}), "later")
	for range 3 {
		consumer.ReconsumeLater(w.receive(consumer), 500*time.Millisecond)
	}
	equal(w, string(w.take(letters, 1)[0].Payload()), "later")
	w.nothingMore(consumer)
}
