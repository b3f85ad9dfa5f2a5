package compat

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"os"
	"path/filepath"
	"testing"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/crypto"
)

// Feature: producer access modes
func TestAnExclusiveProducerKeepsOthersOut(t *testing.T) {
	w := newWorld(t)
	exclusive := pulsar.ProducerOptions{
		Topic: w.topic, ProducerAccessMode: pulsar.ProducerAccessModeExclusive,
	}
	first := w.producer(exclusive)
	_, err := w.client.CreateProducer(exclusive)
	w.refused(err, "ProducerFenced")
	_, err = w.client.CreateProducer(pulsar.ProducerOptions{Topic: w.topic})
	w.refused(err, "ProducerBusy")
	w.sendValues(first, "m")
	first.Close()
	w.sendValues(w.producer(exclusive), "n")
}

// Feature: producer access modes
func TestAProducerThatWaitsFollowsTheOneThatLeaves(t *testing.T) {
	w := newWorld(t)
	waiting := pulsar.ProducerOptions{
		Topic: w.topic, ProducerAccessMode: pulsar.ProducerAccessModeWaitForExclusive,
	}
	first := w.producer(waiting)
	second := make(chan pulsar.Producer)
	go func() {
		producer, err := w.client.CreateProducer(waiting)
		if err != nil {
			w.Error(err)
		}
		second <- producer
	}()
	w.sendValues(first, "first")
	select {
	case <-second:
		w.Fatal("two have it")
	default:
	}
	first.Close()
	w.sendValues(<-second, "second")
	consumer := w.subscribe(pulsar.ConsumerOptions{})
	same(w, valuesOf(w.take(consumer, 2)), []string{"first", "second"})
}

// keys writes a pair of RSA keys, and returns their reader.
func (w *world) keys() *crypto.FileKeyReader {
	w.Helper()
	private, err := rsa.GenerateKey(rand.Reader, 2048)
	w.must(err)
	public, err := x509.MarshalPKIXPublicKey(&private.PublicKey)
	w.must(err)
	directory := w.TempDir()
	write := func(name, kind string, content []byte) string {
		path := filepath.Join(directory, name)
		block := pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: content})
		w.must(os.WriteFile(path, block, 0o600))
		return path
	}
	return crypto.NewFileKeyReader(
		write("public.pem", "PUBLIC KEY", public),
		write("private.pem", "RSA PRIVATE KEY", x509.MarshalPKCS1PrivateKey(private)))
}

// Feature: encryption
func TestEncryptedMessagesAreReadByWhoHasTheKey(t *testing.T) {
	w := newWorld(t)
	keys := w.keys()
	for _, alone := range []bool{true, false} {
		w.topic += "x"
		consumer := w.subscribe(pulsar.ConsumerOptions{
			Decryption: &pulsar.MessageDecryptionInfo{KeyReader: keys},
		})
		stranger := w.subscribe(pulsar.ConsumerOptions{
			SubscriptionName: "stranger",
			Decryption: &pulsar.MessageDecryptionInfo{
				KeyReader:                   w.keys(),
				ConsumerCryptoFailureAction: crypto.ConsumerCryptoFailureActionConsume,
			},
		})
		producer := w.producer(pulsar.ProducerOptions{
			DisableBatching: alone,
			Encryption: &pulsar.ProducerEncryptionInfo{
				KeyReader: keys, Keys: []string{"key"},
			},
		})
		_, err := producer.Send(context.Background(), text("secret"))
		w.must(err)
		same(w, valuesOf(w.take(consumer, 1)), []string{"secret"})
		unread := w.take(stranger, 1)[0]
		if string(unread.Payload()) == "secret" {
			w.Fatal("it was not encrypted")
		}
		equal(w, unread.GetEncryptionContext() != nil, true)
	}
}
