package compat

import (
	"bytes"
	"math/rand"
	"testing"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
)

// Feature: batches
func TestABatchIsOneEntryOfManyMessages(t *testing.T) {
	w := newWorld(t)
	consumer := w.subscribe(pulsar.ConsumerOptions{})
	producer := w.producer(pulsar.ProducerOptions{BatchingMaxPublishDelay: time.Minute})
	ids := w.sendValues(producer, numbers(10)...)
	for place, message := range w.take(consumer, 10) {
		equal(w, message.ID().EntryID(), ids[0].EntryID())
		equal(w, int(message.ID().BatchIdx()), place)
	}
}

// Feature: batches
func TestABatchByKeyKeepsKeysApart(t *testing.T) {
	w := newWorld(t)
	consumer := w.subscribe(pulsar.ConsumerOptions{Type: pulsar.KeyShared})
	producer := w.producer(pulsar.ProducerOptions{
		BatcherBuilderType: pulsar.KeyBasedBatchBuilder, BatchingMaxPublishDelay: time.Minute,
	})
	w.send(producer, keyed("a", "1"), keyed("b", "2"), keyed("a", "3"))
	entries := map[string]int64{}
	for _, message := range w.take(consumer, 3) {
		entries[message.Key()+string(message.Payload())] = message.ID().EntryID()
	}
	equal(w, entries["a1"], entries["a3"])
	if entries["a1"] == entries["b2"] {
		w.Fatal("two keys share a batch")
	}
}

func noise(size int) []byte {
	content := make([]byte, size)
	rand.New(rand.NewSource(1)).Read(content)
	return content
}

// Feature: chunks
func TestALargeMessageTravelsInChunks(t *testing.T) {
	w := newWorld(t)
	consumer := w.subscribe(pulsar.ConsumerOptions{})
	producer := w.producer(pulsar.ProducerOptions{
		DisableBatching: true, EnableChunking: true, ChunkMaxMessageSize: 100_000,
	})
	large := noise(1_000_000)
	w.send(producer, &pulsar.ProducerMessage{Payload: large}, text("after"))
	messages := w.take(consumer, 2)
	if !bytes.Equal(messages[0].Payload(), large) {
		w.Fatal("another content")
	}
	equal(w, string(messages[1].Payload()), "after")
	equal(w, messages[1].ID().EntryID() >= 10, true)
}

// Feature: compression
func TestEveryCompressionArrivesWhole(t *testing.T) {
	w := newWorld(t)
	consumer := w.subscribe(pulsar.ConsumerOptions{})
	content := bytes.Repeat([]byte("pulsar "), 1000)
	for _, compression := range []pulsar.CompressionType{
		pulsar.NoCompression, pulsar.LZ4, pulsar.ZLib, pulsar.ZSTD, pulsar.SNAPPY,
	} {
		for _, alone := range []bool{true, false} {
			producer := w.producer(pulsar.ProducerOptions{
				CompressionType: compression, DisableBatching: alone,
			})
			w.send(producer, &pulsar.ProducerMessage{Payload: content})
			if !bytes.Equal(w.take(consumer, 1)[0].Payload(), content) {
				w.Fatalf("compression %v: another content", compression)
			}
		}
	}
}

// Feature: keys and properties
func TestKeysPropertiesAndTimesArrive(t *testing.T) {
	w := newWorld(t)
	consumer := w.subscribe(pulsar.ConsumerOptions{})
	for _, alone := range []bool{true, false} {
		sequence, when := int64(41), time.UnixMilli(1234)
		if alone {
			sequence = 7
		}
		producer := w.producer(pulsar.ProducerOptions{DisableBatching: alone})
		w.send(producer, &pulsar.ProducerMessage{
			Payload: []byte("m"), Key: "k", OrderingKey: "o", EventTime: when,
			SequenceID: &sequence, Properties: map[string]string{"p": "q"},
		})
		equal(w, producer.LastSequenceID(), sequence)
		message := w.take(consumer, 1)[0]
		equal(w, message.Key(), "k")
		equal(w, message.OrderingKey(), "o")
		equal(w, message.EventTime().UnixMilli(), when.UnixMilli())
		equal(w, message.Properties()["p"], "q")
		equal(w, message.ProducerName(), producer.Name())
		equal(w, time.Since(message.PublishTime()).Abs() < time.Minute, true)
		producer.Close()
	}
}

// Feature: broker entry metadata
func TestTheBrokersIndexAndTimeComeWithAMessage(t *testing.T) {
	w := newWorld(t)
	consumer := w.subscribe(pulsar.ConsumerOptions{})
	producer := w.producer(pulsar.ProducerOptions{DisableBatching: true})
	w.sendValues(producer, "0", "1")
	for place, message := range w.take(consumer, 2) {
		equal(w, *message.Index(), uint64(place))
		equal(w, time.Since(*message.BrokerPublishTime()).Abs() < time.Minute, true)
	}
}

// Feature: delayed delivery
func TestDelayedMessagesComeInTheOrderOfTheirTimes(t *testing.T) {
	w := newWorld(t)
	var consumers []pulsar.Consumer
	for _, kind := range []pulsar.SubscriptionType{pulsar.Shared, pulsar.KeyShared} {
		topic := w.topic + string(rune('a'+kind))
		consumers = append(consumers, w.subscribe(pulsar.ConsumerOptions{Type: kind, Topic: topic}))
		producer := w.producer(pulsar.ProducerOptions{Topic: topic})
		after, at, now := text("after"), text("at"), text("now")
		after.DeliverAfter = 7 * time.Second
		at.DeliverAt = time.Now().Add(4 * time.Second)
		w.send(producer, after, at, now)
	}
	for _, consumer := range consumers {
		same(w, valuesOf(w.take(consumer, 3)), []string{"now", "at", "after"})
	}
}
