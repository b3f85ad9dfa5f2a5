package compat

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"regexp"
	"testing"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
)

// These tests start and kill their own broker, which PYTHON runs.

var ready = regexp.MustCompile(`pybroker ready (pulsar://[^ ]*:(\d+))`)

type broker struct {
	world     *world
	directory string
	port      string
	url       string
	process   *exec.Cmd
}

func (b *broker) start() {
	b.world.Helper()
	b.process = exec.Command(os.Getenv("PYTHON"), "-m", "pybroker", "standalone",
		"--data-dir", b.directory, "--port", b.port, "--http-port", "0")
	b.process.Stderr = os.Stderr
	output, err := b.process.StdoutPipe()
	b.world.must(err)
	b.world.must(b.process.Start())
	line, err := bufio.NewReader(output).ReadString('\n')
	b.world.must(err)
	found := ready.FindStringSubmatch(line)
	if found == nil {
		b.world.Fatalf("not ready: %q", line)
	}
	b.url, b.port = found[1], found[2]
}

func (b *broker) kill() {
	_ = b.process.Process.Kill()
	_ = b.process.Wait()
}

func (b *broker) killAndStart() {
	b.world.Helper()
	b.kill()
	b.start()
}

// aside is a world with its own broker, which tests may kill.
func aside(t *testing.T) (*world, *broker) {
	w := &world{T: t, topic: topicOf(t)}
	running := &broker{world: w, directory: t.TempDir(), port: "0"}
	running.start()
	t.Cleanup(running.kill)
	options := options()
	options.URL = running.url
	client, err := pulsar.NewClient(options)
	w.must(err)
	t.Cleanup(client.Close)
	w.client = client
	return w, running
}

// Feature: broker restarts
func TestNothingIsLostWhenTheBrokerIsKilled(t *testing.T) {
	w, broker := aside(t)
	consumer := w.subscribe(pulsar.ConsumerOptions{})
	producer := w.producer(pulsar.ProducerOptions{DisableBatching: true})
	w.sendValues(producer, numbers(10)...)
	broker.killAndStart()
	w.sendValues(producer, "last")
	seen := map[string]bool{}
	for !seen["last"] {
		seen[string(w.take(consumer, 1)[0].Payload())] = true
	}
	equal(w, len(seen), 11)
}

// Feature: broker restarts, transactions
func TestTransactionsAreAsTheyWereWhenTheBrokerIsKilled(t *testing.T) {
	w, broker := aside(t)
	producer := w.producer(mixed)
	aborted, committed, open := w.begin(time.Minute), w.begin(time.Minute), w.begin(time.Minute)
	w.send(producer, inside(aborted, "aborted"))
	w.send(producer, inside(committed, "committed"))
	w.send(producer, inside(open, "open"))
	w.abort(aborted)
	w.commit(committed)
	broker.killAndStart()
	w.send(producer, inside(open, "open too"))
	consumer := w.subscribe(pulsar.ConsumerOptions{})
	same(w, valuesOf(w.take(consumer, 1)), []string{"committed"})
	w.nothingMore(consumer)
	w.commit(open)
	same(w, valuesOf(w.take(consumer, 2)), []string{"open", "open too"})
}

// Feature: broker restarts, transactions
func TestANewerSessionOfATransactionalIdFencesTheOlderOne(t *testing.T) {
	w, broker := aside(t)
	fenced := pulsar.ProducerOptions{
		DisableBatching: true,
		Properties:      map[string]string{"txn.transactional.id": "go"},
		SendTimeout:     10 * time.Second,
	}
	older := w.producer(fenced)
	txn := w.begin(time.Minute)
	w.send(older, inside(txn, "in a transaction"))
	broker.killAndStart()
	w.sendValues(older, "after the restart")
	w.commit(txn)
	open := w.begin(time.Minute)
	w.send(older, inside(open, "open"))

	options := options()
	options.URL = broker.url
	client, err := pulsar.NewClient(options)
	w.must(err)
	t.Cleanup(client.Close)
	newer := &world{t, client, w.topic}
	newer.sendValues(newer.producer(fenced), "newer")
	if _, err := older.Send(context.Background(), inside(open, "zombie")); err == nil {
		t.Error("a fenced producer sent a message")
	}
	if err := open.Commit(context.Background()); err == nil {
		t.Error("a fenced transaction was committed")
	}
	seen := valuesOf(newer.take(newer.subscribe(pulsar.ConsumerOptions{}), 3))
	same(w, seen, []string{"in a transaction", "after the restart", "newer"})
}
