package compat

import (
	"testing"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
)

// Feature: readers
func TestAReaderReadsToTheEndAndFromAMessageOn(t *testing.T) {
	w := newWorld(t)
	for _, alone := range []bool{true, false} {
		w.topic += "x"
		values := w.publishNumbers(!alone)
		messages := w.readAll(w.reader(pulsar.ReaderOptions{
			StartMessageID: pulsar.EarliestMessageID(),
		}))
		same(w, valuesOf(messages), values)
		from := pulsar.ReaderOptions{StartMessageID: messages[30].ID()}
		equal(w, string(w.readNext(w.reader(from)).Payload()), values[31])
		from.StartMessageIDInclusive = true
		equal(w, string(w.readNext(w.reader(from)).Payload()), values[30])
		last, err := w.reader(from).GetLastMessageID()
		w.must(err)
		equal(w, last.EntryID(), messages[count-1].ID().EntryID())
	}
}

// Feature: readers
func TestAReaderFromTheLatestWaitsForWhatIsNew(t *testing.T) {
	w := newWorld(t)
	w.publishNumbers(true)
	reader := w.reader(pulsar.ReaderOptions{StartMessageID: pulsar.LatestMessageID()})
	equal(w, reader.HasNext(), false)
	w.sendValues(w.producer(pulsar.ProducerOptions{}), "new")
	equal(w, string(w.readNext(reader).Payload()), "new")
}

// Feature: seek to a message
func TestSeekingGoesBackToAMessage(t *testing.T) {
	w := newWorld(t)
	consumer := w.subscribe(pulsar.ConsumerOptions{})
	values := w.publishNumbers(false)
	messages := w.take(consumer, count)
	w.must(consumer.Seek(messages[9].ID()))
	same(w, valuesOf(w.take(consumer, count-10)), values[10:])
}

// Feature: seek to a time
func TestSeekingGoesBackToATime(t *testing.T) {
	w := newWorld(t)
	consumer := w.subscribe(pulsar.ConsumerOptions{})
	producer := w.producer(pulsar.ProducerOptions{DisableBatching: true})
	w.sendValues(producer, "before", "after")
	messages := w.take(consumer, 2)
	w.must(consumer.SeekByTime(messages[0].PublishTime()))
	same(w, valuesOf(w.take(consumer, 2)), []string{"before", "after"})
	w.must(consumer.SeekByTime(time.Now().Add(time.Hour)))
	w.nothingMore(consumer)
	reader := w.reader(pulsar.ReaderOptions{StartMessageID: pulsar.LatestMessageID()})
	w.must(reader.SeekByTime(messages[0].PublishTime()))
	same(w, valuesOf(w.readAll(reader)), []string{"before", "after"})
}

// Feature: last message id
func TestTheLastMessageIdIsTheLastMessages(t *testing.T) {
	w := newWorld(t)
	consumer := w.subscribe(pulsar.ConsumerOptions{})
	ids := w.sendValues(w.producer(pulsar.ProducerOptions{DisableBatching: true}), "1", "2")
	last, err := consumer.GetLastMessageIDs()
	w.must(err)
	equal(w, len(last), 1)
	equal(w, last[0].EntryID(), ids[1].EntryID())
	equal(w, last[0].Topic(), w.topic)
}
