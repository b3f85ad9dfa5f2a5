// Right: the invoice and the acknowledgement are in one transaction of the official client. A failure
// ends the process; its supervisor restarts it, and the order is redelivered. The broker must
// deduplicate: the client resends an invoice in the same transaction if its receipt is lost.
//
// java -cp 'jars/*' examples/Transactions.java SERVICE_URL INPUT OUTPUT

import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.transaction.Transaction;

public class Transactions {
    public static void main(String[] arguments) {
        try {
            run(arguments[0], arguments[1], arguments[2]);
        } catch (Throwable error) {
            error.printStackTrace();
        }
        System.exit(1); // the client's threads would keep the process alive
    }

    private static void run(String serviceUrl, String source, String target) throws Exception {
        PulsarClient client = PulsarClient.builder().serviceUrl(serviceUrl).enableTransaction(true).build();
        Producer<String> invoices = client.newProducer(Schema.STRING)
                .topic(target)
                .sendTimeout(0, TimeUnit.SECONDS) // required for transactions
                .create();
        Consumer<String> orders = client.newConsumer(Schema.STRING)
                .topic(source)
                .subscriptionName("billing")
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
                .subscribe();
        while (true) {
            Message<String> order = orders.receive();
            Transaction transaction = client.newTransaction()
                    .withTransactionTimeout(1, TimeUnit.MINUTES)
                    .build()
                    .get();
            invoices.newMessage(transaction)
                    .key(order.getKey())
                    .value("invoice for " + order.getValue())
                    .send();
            orders.acknowledgeAsync(order.getMessageId(), transaction).get();
            transaction.commit().get();
        }
    }
}
