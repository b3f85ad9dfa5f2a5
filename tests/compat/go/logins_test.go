package compat

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/log"
	"github.com/apache/pulsar-client-go/pulsaradmin/pkg/utils"
	"github.com/sirupsen/logrus"
)

// These tests run against a broker with TLS, three ways to log in, and permissions for alice.

func (w *world) token(name string) pulsar.Authentication {
	w.Helper()
	shown, err := os.ReadFile(w.file(name + ".token"))
	w.must(err)
	return pulsar.NewAuthenticationToken(string(shown))
}

func (w *world) password(user, password string) pulsar.Authentication {
	w.Helper()
	login, err := pulsar.NewAuthenticationBasic(user, password)
	w.must(err)
	return login
}

func (w *world) certificate(role string) pulsar.Authentication {
	return pulsar.NewAuthenticationTLS(w.file(role+".crt"), w.file(role+".key"))
}

// as is a world whose client uses these credentials.
func as(t *testing.T, login func(*world) pulsar.Authentication) *world {
	return asWith(t, login, func(*pulsar.ClientOptions) {})
}

func asWith(
	t *testing.T, login func(*world) pulsar.Authentication, change func(*pulsar.ClientOptions),
) *world {
	w := &world{T: t, topic: "persistent://" + os.Getenv("NAMESPACE") + "/t"}
	options := options()
	options.EnableTransaction = false
	options.Authentication = login(w)
	options.TLSTrustCertsFilePath = w.file("ca.crt")
	options.TLSValidateHostname = true
	change(&options)
	client, err := pulsar.NewClient(options)
	w.must(err)
	t.Cleanup(client.Close)
	w.client = client
	return w
}

func (w *world) produceAndConsume() {
	w.Helper()
	consumer := w.subscribe(pulsar.ConsumerOptions{})
	w.sendValues(w.producer(pulsar.ProducerOptions{}), "m")
	same(w, valuesOf(w.take(consumer, 1)), []string{"m"})
}

func (w *world) mayNothing() {
	w.Helper()
	_, err := w.client.CreateProducer(pulsar.ProducerOptions{Topic: w.topic})
	w.refused(err, "AuthorizationError")
	_, err = w.client.Subscribe(w.completed(pulsar.ConsumerOptions{}))
	w.refused(err, "AuthorizationError")
}

// nobody expects a refused login: this client retries until its timeout; its log has the reason.
func nobody(t *testing.T, why string, login func(*world) pulsar.Authentication) {
	var said bytes.Buffer
	logger := logrus.New()
	logger.SetOutput(&said)
	w := asWith(t, login, func(options *pulsar.ClientOptions) {
		options.OperationTimeout = time.Second
		options.Logger = log.NewLoggerWithLogrus(logger)
	})
	_, err := w.client.CreateProducer(pulsar.ProducerOptions{Topic: w.topic})
	w.refused(err, "connection error")
	w.client.Close()
	if !strings.Contains(said.String(), why) {
		t.Fatalf("not told why: %s", said.String())
	}
}

func tokenOf(name string) func(*world) pulsar.Authentication {
	return func(w *world) pulsar.Authentication { return w.token(name) }
}

func passwordOf(user, password string) func(*world) pulsar.Authentication {
	return func(w *world) pulsar.Authentication { return w.password(user, password) }
}

func certificateOf(role string) func(*world) pulsar.Authentication {
	return func(w *world) pulsar.Authentication { return w.certificate(role) }
}

func rightPassword(user string) func(*world) pulsar.Authentication {
	return passwordOf(user, os.Getenv("PASSWORD"))
}

// Feature: login by token
func TestARightTokenLetsIn(t *testing.T) {
	as(t, tokenOf("alice")).produceAndConsume()
	as(t, tokenOf("stranger")).mayNothing()
}

// Feature: login by token
func TestAWrongTokenLetsNobodyIn(t *testing.T) {
	nobody(t, "Failed to authenticate", tokenOf("forged"))
	nobody(t, "The token has expired", tokenOf("expired"))
	nobody(t, "Failed to authenticate", func(*world) pulsar.Authentication {
		return pulsar.NewAuthenticationToken("nonsense")
	})
}

// Feature: login by password
func TestARightPasswordLetsIn(t *testing.T) {
	as(t, rightPassword("alice")).produceAndConsume()
	as(t, rightPassword("stranger")).mayNothing()
}

// Feature: login by password
func TestAWrongPasswordLetsNobodyIn(t *testing.T) {
	nobody(t, "Unknown user or wrong password", passwordOf("alice", "guessed"))
	nobody(t, "Unknown user or wrong password", rightPassword("nobody"))
}

// Feature: login by certificate
func TestARightCertificateLetsIn(t *testing.T) {
	as(t, certificateOf("alice")).produceAndConsume()
	as(t, certificateOf("stranger")).mayNothing()
}

// Feature: login by certificate
func TestWhoShowsNothingIsNobody(t *testing.T) {
	nobody(t, "Log in with one of", func(*world) pulsar.Authentication { return nil })
}

// Feature: token renewed while connected, admin client
func TestATokenThatExpiresIsRenewedOnTheSameConnection(t *testing.T) {
	var asked atomic.Int32
	w := as(t, func(*world) pulsar.Authentication {
		return pulsar.NewAuthenticationTokenFromSupplier(func() (string, error) {
			asked.Add(1)
			return shortToken(), nil
		})
	})
	producer := w.producer(pulsar.ProducerOptions{})
	address := func() string {
		stats, err := w.admin().Topics().GetStats(w.topicName())
		w.must(err)
		return stats.Publishers[0].Address
	}
	first, before := address(), asked.Load()
	w.until("another token was asked for", func() bool { return asked.Load() > before })
	w.sendValues(producer, "m")
	equal(w, address(), first)
}

// shortToken is a token of alice that expires after five seconds.
func shortToken() string {
	encode := base64.RawURLEncoding.EncodeToString
	claims := fmt.Sprintf(`{"sub":"alice","exp":%d}`, time.Now().Unix()+5)
	text := encode([]byte(`{"alg":"HS256","typ":"JWT"}`)) + "." + encode([]byte(claims))
	secret, _ := base64.StdEncoding.DecodeString(os.Getenv("SECRET"))
	signature := hmac.New(sha256.New, secret)
	signature.Write([]byte(text))
	return text + "." + encode(signature.Sum(nil))
}

func (w *world) namespace() utils.NameSpaceName {
	w.Helper()
	name, err := utils.GetNamespaceName(os.Getenv("NAMESPACE"))
	w.must(err)
	return *name
}

// stopsWhenRevoked: both reconnect by themselves, and continue once they have permission.
func (w *world) stopsWhenRevoked() {
	w.Helper()
	consumer := w.subscribe(pulsar.ConsumerOptions{})
	w.sendValues(w.producer(pulsar.ProducerOptions{}), "before")
	producer := w.producer(pulsar.ProducerOptions{SendTimeout: 2 * time.Second})
	equal(w, string(w.receive(consumer).Payload()), "before")
	namespaces, topics := w.admin().Namespaces(), w.admin().Topics()
	w.must(namespaces.RevokeNamespacePermission(w.namespace(), "alice"))
	stats, err := topics.GetStats(w.topicName())
	w.must(err)
	equal(w, len(stats.Publishers)+len(stats.Subscriptions["s"].Consumers), 0)
	_, err = producer.Send(context.Background(), text("after"))
	w.refused(err, "TimeoutError")
	boss := as(w.T, func(*world) pulsar.Authentication {
		return pulsar.NewAuthenticationToken(os.Getenv("ADMIN_TOKEN"))
	})
	boss.sendValues(boss.producer(pulsar.ProducerOptions{}), "of another")
	w.nothingMore(consumer)
	w.must(namespaces.GrantNamespacePermission(
		w.namespace(), "alice", []utils.AuthAction{"produce", "consume"}))
	same(w, valuesOf(w.take(consumer, 2)), []string{"before", "of another"})
	w.until("the producer is back", func() bool {
		_, err := producer.Send(context.Background(), text("again"))
		if err != nil && !strings.Contains(err.Error(), "TimeoutError") {
			w.Fatal(err)
		}
		return err == nil
	})
}

// Feature: login by token, permission revoked while connected, admin client
func TestARevokedPermissionStopsWhoCameWithAToken(t *testing.T) {
	as(t, tokenOf("alice")).stopsWhenRevoked()
}

// Feature: login by password, permission revoked while connected, admin client
func TestARevokedPermissionStopsWhoCameWithAPassword(t *testing.T) {
	as(t, rightPassword("alice")).stopsWhenRevoked()
}

// Feature: login by certificate, permission revoked while connected, admin client
func TestARevokedPermissionStopsWhoCameWithACertificate(t *testing.T) {
	as(t, certificateOf("alice")).stopsWhenRevoked()
}
