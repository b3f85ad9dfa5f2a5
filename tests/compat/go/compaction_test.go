package compat

import (
	"reflect"
	"testing"

	"github.com/apache/pulsar-client-go/pulsar"
)

func (w *world) compact() {
	w.Helper()
	topics := w.admin().Topics()
	w.must(topics.Compact(w.topicName()))
	w.until("the compaction ended", func() bool {
		status, err := topics.CompactStatus(w.topicName())
		w.must(err)
		return status.Status == "SUCCESS"
	})
}

// Feature: compaction, admin client
func TestACompactedTopicHasTheLastOfEachKey(t *testing.T) {
	w := newWorld(t)
	for _, alone := range []bool{true, false} {
		w.topic += "x"
		producer := w.producer(pulsar.ProducerOptions{
			DisableBatching: alone, CompressionType: pulsar.ZLib,
		})
		w.send(producer,
			keyed("a", "1"), keyed("b", "2"), keyed("c", "3"),
			keyed("a", "4"), keyed("b", ""), keyed("c", "5"))
		w.compact()
		w.send(producer, keyed("d", "6"))
		reader := w.reader(pulsar.ReaderOptions{
			StartMessageID: pulsar.EarliestMessageID(), ReadCompacted: true,
		})
		// What deletes b is kept for a time. The client discards it outside of a batch, as it is empty.
		kept := []string{"4", "5", "6"}
		if !alone {
			kept = []string{"4", "", "5", "6"}
		}
		same(w, valuesOf(w.readAll(reader)), kept)
		consumer := w.subscribe(pulsar.ConsumerOptions{ReadCompacted: true})
		same(w, valuesOf(w.take(consumer, len(kept))), kept)
		w.nothingMore(consumer)
	}
}

// Feature: table view
func TestATableViewHoldsTheLastOfEachKeyAndFollows(t *testing.T) {
	w := newWorld(t)
	producer := w.producer(pulsar.ProducerOptions{Schema: pulsar.NewStringSchema(nil)})
	put := func(key, value string) {
		w.send(producer, &pulsar.ProducerMessage{Key: key, Value: value})
	}
	put("a", "1")
	put("b", "2")
	put("a", "3")
	w.compact()
	view, err := w.client.CreateTableView(pulsar.TableViewOptions{
		Topic: w.topic, Schema: pulsar.NewStringSchema(nil),
		SchemaValueType: reflect.TypeOf(new(string)),
	})
	w.must(err)
	defer view.Close()
	equal(w, view.Size(), 2)
	equal(w, *view.Get("a").(*string), "3")
	put("c", "4")
	w.until("the view hears of c", func() bool { return view.ContainsKey("c") })
}
