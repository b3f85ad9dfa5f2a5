package compat

import (
	"testing"

	"github.com/apache/pulsar-client-go/pulsar"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

const (
	person = `{"type":"record","name":"Person","fields":[` +
		`{"name":"name","type":"string"},{"name":"age","type":"int"}]}`
	grown = `{"type":"record","name":"Person","fields":[{"name":"name","type":"string"},` +
		`{"name":"age","type":"int"},{"name":"city","type":"string","default":""}]}`
	broken = `{"type":"record","name":"Person","fields":[` +
		`{"name":"name","type":"int"},{"name":"age","type":"int"}]}`
)

type Person struct {
	Name string `json:"name" avro:"name"`
	Age  int    `json:"age" avro:"age"`
}

type Grown struct {
	Name string `json:"name" avro:"name"`
	Age  int    `json:"age" avro:"age"`
	City string `json:"city" avro:"city"`
}

func (w *world) roundTrip(schema pulsar.Schema, value, into any) {
	w.Helper()
	consumer := w.subscribe(pulsar.ConsumerOptions{Schema: schema})
	defer consumer.Close()
	producer := w.producer(pulsar.ProducerOptions{Schema: schema})
	w.send(producer, &pulsar.ProducerMessage{Value: value})
	message := w.take(consumer, 1)[0]
	w.must(message.GetSchemaValue(into))
	equal(w, len(message.SchemaVersion()), 8)
}

// Feature: JSON schema
func TestJSONRecordsArrive(t *testing.T) {
	w := newWorld(t)
	var found Person
	w.roundTrip(pulsar.NewJSONSchema(person, nil), &Person{"Ada", 36}, &found)
	equal(w, found, Person{"Ada", 36})
}

// Feature: Avro schema
func TestAvroRecordsArrive(t *testing.T) {
	w := newWorld(t)
	var found Person
	w.roundTrip(pulsar.NewAvroSchema(person, nil), &Person{"Ada", 36}, &found)
	equal(w, found, Person{"Ada", 36})
}

// Feature: primitive schemas
func TestSingleValuesArrive(t *testing.T) {
	w := newWorld(t)
	word, number, float := "hello", int64(-42), 2.5
	var foundWord *string
	var foundNumber int64
	var foundFloat float64
	w.roundTrip(pulsar.NewStringSchema(nil), word, &foundWord)
	equal(w, *foundWord, word)
	w.topic += "x"
	w.roundTrip(pulsar.NewInt64Schema(nil), number, &foundNumber)
	equal(w, foundNumber, number)
	w.topic += "x"
	w.roundTrip(pulsar.NewDoubleSchema(nil), float, &foundFloat)
	equal(w, foundFloat, float)
}

// Feature: Protobuf schema
func TestProtobufMessagesArrive(t *testing.T) {
	w := newWorld(t)
	schema := pulsar.NewProtoNativeSchemaWithMessage(&wrapperspb.StringValue{}, nil)
	found := &wrapperspb.StringValue{}
	w.roundTrip(schema, wrapperspb.String("hello"), found)
	equal(w, found.GetValue(), "hello")
}

// Feature: schema evolution
func TestACompatibleSchemaIsTheNextVersionAndAnotherIsRefused(t *testing.T) {
	w := newWorld(t)
	consumer := w.subscribe(pulsar.ConsumerOptions{})
	old := w.producer(pulsar.ProducerOptions{Schema: pulsar.NewAvroSchema(person, nil)})
	w.send(old, &pulsar.ProducerMessage{Value: &Person{"Ada", 36}})
	newer := w.producer(pulsar.ProducerOptions{Schema: pulsar.NewAvroSchema(grown, nil)})
	w.send(newer, &pulsar.ProducerMessage{Value: &Grown{"Ada", 36, "London"}})
	for version, message := range w.take(consumer, 2) {
		equal(w, message.SchemaVersion()[7], byte(version))
	}
	_, err := w.client.CreateProducer(pulsar.ProducerOptions{
		Topic: w.topic, Schema: pulsar.NewAvroSchema(broken, nil),
	})
	w.refused(err, "IncompatibleSchema")
	_, err = w.client.Subscribe(w.completed(pulsar.ConsumerOptions{
		SubscriptionName: "other", Schema: pulsar.NewJSONSchema(person, nil),
	}))
	w.refused(err, "IncompatibleSchema")
}

// Feature: schema evolution
func TestAMessageMayBringASchemaOfItsOwn(t *testing.T) {
	w := newWorld(t)
	consumer := w.subscribe(pulsar.ConsumerOptions{})
	producer := w.producer(pulsar.ProducerOptions{Schema: pulsar.NewAvroSchema(person, nil)})
	w.send(producer, &pulsar.ProducerMessage{Value: &Person{"Ada", 36}})
	w.send(producer, &pulsar.ProducerMessage{
		Schema: pulsar.NewAvroSchema(grown, nil), Value: &Grown{"Ada", 36, "London"},
	})
	for version, message := range w.take(consumer, 2) {
		equal(w, message.SchemaVersion()[7], byte(version))
	}
}
