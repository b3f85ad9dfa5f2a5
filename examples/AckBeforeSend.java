// WRONG: acknowledges, then works on the order and sends. A crash in between loses the invoice.
//
// java -cp 'jars/*' examples/AckBeforeSend.java SERVICE_URL INPUT OUTPUT

import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;

public class AckBeforeSend {
    public static void main(String[] arguments) throws Exception {
        PulsarClient client = PulsarClient.builder().serviceUrl(arguments[0]).build();
        Consumer<String> orders = client.newConsumer(Schema.STRING)
                .topic(arguments[1])
                .subscriptionName("billing")
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
                .subscribe();
        Producer<String> invoices = client.newProducer(Schema.STRING).topic(arguments[2]).create();
        while (true) {
            Message<String> order = orders.receive();
            orders.acknowledge(order);
            String invoice = "invoice for " + lookUpCustomer(order.getValue());
            // Killed here, it never sends this invoice.
            invoices.newMessage().key(order.getKey()).value(invoice).send();
        }
    }

    private static String lookUpCustomer(String order) throws InterruptedException {
        TimeUnit.MILLISECONDS.sleep(200); // like a call to another service
        return order;
    }
}
