package compat

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
)

// These tests run against several brokers, and their topics are on all of them.

func severalTopics(t *testing.T) []string {
	topics := make([]string, 6)
	for place := range topics {
		topics[place] = fmt.Sprintf("%s-%d", topicOf(t), place)
	}
	return topics
}

// asSession makes a producer on each topic. Without a name, txn.session is not set.
func (w *world) asSession(name string, topics []string) ([]pulsar.Producer, error) {
	properties := map[string]string{"txn.transactional.id": "go"}
	if name != "" {
		properties["txn.session"] = name
	}
	var producers []pulsar.Producer
	for _, topic := range topics {
		producer, err := w.client.CreateProducer(pulsar.ProducerOptions{
			Topic: topic, Properties: properties, DisableBatching: true,
			SendTimeout: 10 * time.Second,
		})
		if err != nil {
			return nil, err
		}
		producers = append(producers, producer)
	}
	return producers, nil
}

func (w *world) sendToAll(producers []pulsar.Producer, txn pulsar.Transaction, value string) {
	w.Helper()
	for _, producer := range producers {
		w.send(producer, inside(txn, value))
	}
}

// Feature: transactions
func TestANewerSessionFencesTheOlderOneOnAllBrokers(t *testing.T) {
	older, newer, topics := newWorld(t), newWorld(t), severalTopics(t)
	_, err := older.asSession("", topics[:1])
	older.refused(err, "set the property txn.session")
	consumer := newer.subscribe(pulsar.ConsumerOptions{Topics: topics})
	zombies, err := older.asSession("process 1", topics)
	older.must(err)
	committed := older.begin(time.Minute)
	older.sendToAll(zombies, committed, "older")
	older.commit(committed)
	same(newer, valuesOf(newer.take(consumer, len(topics))), repeated("older", len(topics)))
	var open []pulsar.Transaction
	for range 4 {
		txn := older.begin(time.Minute)
		older.sendToAll(zombies, txn, "zombie")
		open = append(open, txn)
	}

	fresh, err := newer.asSession("process 2", topics)
	newer.must(err)
	for _, txn := range open {
		if txn.Commit(context.Background()) == nil {
			t.Error("a transaction of a fenced session was committed")
		}
	}
	for _, zombie := range zombies {
		if _, err := zombie.Send(context.Background(), text("zombie")); err == nil {
			t.Error("a fenced producer sent a message")
		}
	}
	_, err = older.asSession("process 1", topics)
	older.refused(err, "newer session")
	txn := newer.begin(time.Minute)
	newer.sendToAll(fresh, txn, "newer")
	newer.commit(txn)
	same(newer, valuesOf(newer.take(consumer, len(topics))), repeated("newer", len(topics)))
	newer.nothingMore(consumer)
}

func repeated(value string, count int) []string {
	values := make([]string, count)
	for place := range values {
		values[place] = value
	}
	return values
}
