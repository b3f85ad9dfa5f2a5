// Package compat tests the official Go client with the broker, one fact per test.
//
// pytest builds this package once and runs each test against its broker (test_official_go_client.py);
// the comment `Feature: name, name` above a test names what it shows, for docs/clients.md.
package compat

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/log"
	"github.com/apache/pulsar-client-go/pulsaradmin"
	"github.com/apache/pulsar-client-go/pulsaradmin/pkg/utils"
	"github.com/sirupsen/logrus"
)

const (
	soon    = time.Minute // a limit for expected messages, even on a busy machine
	nothing = 500 * time.Millisecond
)

// A world is the client of one test, with its own topic.
type world struct {
	*testing.T
	client pulsar.Client
	topic  string
}

func newWorld(t *testing.T) *world {
	client, err := pulsar.NewClient(options())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return &world{t, client, topicOf(t)}
}

func topicOf(t *testing.T) string {
	return "persistent://public/default/go-" + strings.ReplaceAll(t.Name(), "/", "-")
}

func options() pulsar.ClientOptions {
	return pulsar.ClientOptions{
		URL:               os.Getenv("SERVICE_URL"),
		OperationTimeout:  soon,
		EnableTransaction: true,
		Logger:            quiet(),
	}
}

func quiet() log.Logger {
	logger := logrus.New()
	logger.SetLevel(logrus.ErrorLevel)
	return log.NewLoggerWithLogrus(logger)
}

func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

func (w *world) producer(options pulsar.ProducerOptions) pulsar.Producer {
	w.Helper()
	if options.Topic == "" {
		options.Topic = w.topic
	}
	producer, err := w.client.CreateProducer(options)
	w.must(err)
	return producer
}

func (w *world) subscribe(options pulsar.ConsumerOptions) pulsar.Consumer {
	w.Helper()
	consumer, err := w.client.Subscribe(w.completed(options))
	w.must(err)
	return consumer
}

func (w *world) completed(options pulsar.ConsumerOptions) pulsar.ConsumerOptions {
	if options.Topic == "" && options.Topics == nil && options.TopicsPattern == "" {
		options.Topic = w.topic
	}
	if options.SubscriptionName == "" {
		options.SubscriptionName = "s"
	}
	options.SubscriptionInitialPosition = pulsar.SubscriptionPositionEarliest
	return options
}

func (w *world) reader(options pulsar.ReaderOptions) pulsar.Reader {
	w.Helper()
	options.Topic = w.topic
	reader, err := w.client.CreateReader(options)
	w.must(err)
	w.Cleanup(reader.Close)
	return reader
}

// send publishes all messages at once, and returns their ids when all are durable.
func (w *world) send(producer pulsar.Producer, messages ...*pulsar.ProducerMessage) []pulsar.MessageID {
	w.Helper()
	ids := make([]pulsar.MessageID, len(messages))
	answers := make(chan error, len(messages))
	for place, message := range messages {
		producer.SendAsync(context.Background(), message,
			func(id pulsar.MessageID, _ *pulsar.ProducerMessage, err error) {
				ids[place] = id
				answers <- err
			})
	}
	w.must(producer.Flush())
	for range messages {
		w.must(<-answers)
	}
	return ids
}

func (w *world) sendValues(producer pulsar.Producer, values ...string) []pulsar.MessageID {
	w.Helper()
	messages := make([]*pulsar.ProducerMessage, len(values))
	for place, value := range values {
		messages[place] = text(value)
	}
	return w.send(producer, messages...)
}

func text(value string) *pulsar.ProducerMessage {
	return &pulsar.ProducerMessage{Payload: []byte(value)}
}

func keyed(key, value string) *pulsar.ProducerMessage {
	return &pulsar.ProducerMessage{Key: key, Payload: []byte(value)}
}

func numbers(count int) []string {
	values := make([]string, count)
	for place := range values {
		values[place] = fmt.Sprintf("%03d", place)
	}
	return values
}

func (w *world) receive(consumer pulsar.Consumer) pulsar.Message {
	w.Helper()
	within, cancel := context.WithTimeout(context.Background(), soon)
	defer cancel()
	message, err := consumer.Receive(within)
	w.must(err)
	return message
}

// take receives and acknowledges messages.
func (w *world) take(consumer pulsar.Consumer, count int) []pulsar.Message {
	w.Helper()
	messages := make([]pulsar.Message, count)
	for place := range messages {
		messages[place] = w.receive(consumer)
		w.must(consumer.Ack(messages[place]))
	}
	return messages
}

func valuesOf(messages []pulsar.Message) []string {
	values := make([]string, len(messages))
	for place, message := range messages {
		values[place] = string(message.Payload())
	}
	return values
}

func (w *world) nothingMore(consumers ...pulsar.Consumer) {
	w.Helper()
	for _, consumer := range consumers {
		within, cancel := context.WithTimeout(context.Background(), nothing)
		message, err := consumer.Receive(within)
		cancel()
		if err == nil {
			w.Fatalf("one message too many: %q", message.Payload())
		}
	}
}

func (w *world) readAll(reader pulsar.Reader) []pulsar.Message {
	w.Helper()
	var messages []pulsar.Message
	for reader.HasNext() {
		messages = append(messages, w.readNext(reader))
	}
	return messages
}

func (w *world) readNext(reader pulsar.Reader) pulsar.Message {
	w.Helper()
	within, cancel := context.WithTimeout(context.Background(), soon)
	defer cancel()
	message, err := reader.Next(within)
	w.must(err)
	return message
}

func same[T comparable](w *world, found, wanted []T) {
	w.Helper()
	if !slices.Equal(found, wanted) {
		w.Fatalf("found %v, wanted %v", found, wanted)
	}
}

func equal[T comparable](w *world, found, wanted T) {
	w.Helper()
	if found != wanted {
		w.Fatalf("found %v, wanted %v", found, wanted)
	}
}

func (w *world) refused(err error, words ...string) {
	w.Helper()
	for _, word := range words {
		if err != nil && strings.Contains(err.Error(), word) {
			return
		}
	}
	w.Fatalf("found %v, wanted an error that says %s", err, strings.Join(words, " or "))
}

// untilAsked waits until the broker has the permits of the topic's consumers, which this client
// sends only after Subscribe has returned.
func (w *world) untilAsked(consumers int) {
	w.Helper()
	topics := w.admin().Topics()
	w.until("the consumers ask for messages", func() bool {
		stats, err := topics.GetStats(w.topicName())
		w.must(err)
		asking := 0
		for _, consumer := range stats.Subscriptions["s"].Consumers {
			if consumer.AvailablePermits > 0 {
				asking++
			}
		}
		return asking == consumers
	})
}

// until polls a condition that the broker fulfils in its own time.
func (w *world) until(what string, condition func() bool) {
	w.Helper()
	for deadline := time.Now().Add(soon); !condition(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			w.Fatalf("never: %s", what)
		}
	}
}

// admin is the official Go admin client, which is part of the same module.
func (w *world) admin() pulsaradmin.Client {
	w.Helper()
	admin, err := pulsaradmin.NewClient(&pulsaradmin.Config{
		WebServiceURL: os.Getenv("ADMIN_URL"),
		Token:         os.Getenv("ADMIN_TOKEN"),
	})
	w.must(err)
	return admin
}

func (w *world) topicName() utils.TopicName {
	w.Helper()
	name, err := utils.GetTopicName(w.topic)
	w.must(err)
	return *name
}

func (w *world) file(name string) string {
	return filepath.Join(os.Getenv("CREDENTIALS"), name)
}

var errLate = errors.New("nothing happened")

// within limits work that may block forever.
func within(limit time.Duration, work func() error) error {
	done := make(chan error, 1)
	go func() { done <- work() }()
	select {
	case err := <-done:
		return err
	case <-time.After(limit):
		return errLate
	}
}

// advanceClock makes time pass for the broker, which must have been started in test mode.
func (w *world) advanceClock(by string) {
	w.Helper()
	body := strings.NewReader(fmt.Sprintf(`{"by": %q}`, by))
	url := os.Getenv("ADMIN_URL") + "/admin/v3/clock/advance"
	answer, err := http.Post(url, "application/json", body)
	if err != nil {
		w.Fatal(err)
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		w.Fatalf("the clock cannot be advanced: %s", answer.Status)
	}
}
