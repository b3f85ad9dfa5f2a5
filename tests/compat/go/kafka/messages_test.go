package kafka

import (
	"context"
	"os"
	"testing"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/log"
	"github.com/sirupsen/logrus"
	"github.com/twmb/franz-go/pkg/kgo"
)

// Feature: messages, also of Pulsar's clients
func TestRecordsAndPulsarsMessagesAreInOneLog(t *testing.T) {
	w := newWorld(t, 1)
	w.produce(w.client(), &kgo.Record{
		Topic: w.topic, Key: []byte("ada"), Value: []byte("one lamp"),
		Headers: []kgo.RecordHeader{{Key: "shop", Value: []byte("north")}},
	})
	client := pulsarClient(w)
	producer, err := client.CreateProducer(pulsar.ProducerOptions{Topic: w.topic})
	w.must(err)
	defer producer.Close()
	_, err = producer.Send(context.Background(), &pulsar.ProducerMessage{
		Key: "bob", Payload: []byte("two chairs"), Properties: map[string]string{"shop": "south"},
	})
	w.must(err)

	records := w.poll(w.reader(w.topic), 2)
	same(w, valuesOf(records), []string{"one lamp", "two chairs"})
	same(w, []string{string(records[0].Key), string(records[1].Key)}, []string{"ada", "bob"})
	same(w, []int64{records[0].Offset, records[1].Offset}, []int64{0, 1})
	same(w, []string{string(records[1].Headers[0].Value)}, []string{"south"})

	consumer, err := client.Subscribe(pulsar.ConsumerOptions{
		Topic: w.topic, SubscriptionName: "s",
		SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest,
	})
	w.must(err)
	defer consumer.Close()
	message, err := consumer.Receive(w.ctx)
	w.must(err)
	same(w,
		[]string{message.Key(), string(message.Payload()), message.Properties()["shop"]},
		[]string{"ada", "one lamp", "north"})
}

func pulsarClient(w *world) pulsar.Client {
	logger := logrus.New()
	logger.SetLevel(logrus.ErrorLevel)
	client, err := pulsar.NewClient(pulsar.ClientOptions{
		URL: os.Getenv("SERVICE_URL"), Logger: log.NewLoggerWithLogrus(logger),
	})
	w.must(err)
	w.Cleanup(client.Close)
	return client
}

// Feature: gzip, snappy, lz4, zstd
// Feature: idempotent producer
func TestCompressedBatchesComeAsTheyWere(t *testing.T) {
	w := newWorld(t, 1)
	codecs := []kgo.CompressionCodec{
		kgo.GzipCompression(), kgo.SnappyCompression(), kgo.Lz4Compression(), kgo.ZstdCompression(),
	}
	for place, codec := range codecs {
		// A producer is idempotent unless it is told otherwise.
		client := w.client(kgo.ProducerBatchCompression(codec))
		w.produce(client, w.values(numbers(100*place, 100*place+100)...)...)
	}
	same(w, valuesOf(w.poll(w.reader(w.topic), 400)), numbers(0, 400))
}
